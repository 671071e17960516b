#include "tessera/zero/step/whole_tensor_plan.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parameter_table.h"

namespace tessera::internal::testing {
namespace {

using Entry = WholeTensorPlan::Entry;
using Piece = WholeTensorPlan::Piece;

/// Matrices of these sizes, each after a vector, all in one unit or one unit per pair.
struct PlannedMatrices {
  PlannedMatrices(const std::vector<std::pair<int64_t, int64_t>>& sizes, int world,
                  bool is_one_unit, at::ScalarType dtype = at::kFloat)
      : table([&] {
          std::vector<NamedTensor> tensors;
          for (const auto& [rows, cols] : sizes) {
            const std::string number = std::to_string(tensors.size() / 2);
            tensors.push_back({"v" + number, torch::ones({5}, dtype).set_requires_grad(true)});
            tensors.push_back(
                {"m" + number, torch::ones({rows, cols}, dtype).set_requires_grad(true)});
          }
          return ParameterTable(std::move(tensors));
        }()),
        units(table, memberships(table.size(), is_one_unit), world) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto& [rows, cols] = sizes[i];
      parameters.push_back({.parameter = 2 * i + 1,
                            .cost = rows * cols * std::min(rows, cols),
                            .scratch_numel = 10 * rows});
    }
  }
  static std::vector<UnitPlan::Membership> memberships(size_t parameters, bool is_one_unit) {
    std::vector<UnitPlan::Membership> all;
    for (size_t i = 0; i < parameters; ++i) {
      if (i == 0 || (!is_one_unit && i % 2 == 0)) all.push_back({"unit", {}});
      all.back().parameters.push_back(i);
    }
    return all;
  }
  WholeTensorPlan plan(int ranks) const {
    std::vector<int> slices(static_cast<size_t>(ranks));
    std::iota(slices.begin(), slices.end(), 0);
    return {units, parameters, slices};
  }

  ParameterTable table;
  UnitPlan units;
  std::vector<WholeTensorPlan::Parameter> parameters;
};

std::vector<int> owners_of(const WholeTensorPlan& plan) {
  std::vector<int> owners;
  for (const Entry& entry : plan.entries()) owners.push_back(entry.owner);
  return owners;
}

TEST(WholeTensorPlan, GivesTheCostliestToWhoHasLeastToDo) {
  // Costs 27, 512, 64, 343, 125.
  const PlannedMatrices five({{3, 3}, {8, 8}, {4, 4}, {7, 7}, {5, 5}}, 6, true);
  EXPECT_EQ(owners_of(five.plan(1)), (std::vector<int>{0, 0, 0, 0, 0}));
  EXPECT_EQ(owners_of(five.plan(2)), (std::vector<int>{0, 0, 1, 1, 1}));
  EXPECT_EQ(owners_of(five.plan(3)), (std::vector<int>{2, 0, 2, 1, 2}));
  EXPECT_EQ(owners_of(five.plan(6)), (std::vector<int>{4, 0, 3, 1, 2}));
  const PlannedMatrices equal({{4, 4}, {4, 4}, {4, 4}, {4, 4}}, 3, true);
  EXPECT_EQ(owners_of(equal.plan(3)), (std::vector<int>{0, 1, 2, 0}));
}

TEST(WholeTensorPlan, PiecesAndResultsCoverEveryParameterOnceAndDoNotOverlap) {
  for (const bool is_one_unit : {true, false}) {
    for (const int ranks : {2, 3, 4}) {
      const PlannedMatrices matrices({{13, 11}, {1, 1}, {40, 20}, {9, 30}, {2, 2}}, 12,
                                     is_one_unit);
      const WholeTensorPlan plan = matrices.plan(ranks);
      bool straddles = false;
      std::vector<std::vector<Range>> directions(static_cast<size_t>(ranks));
      std::vector<std::vector<Range>> results(static_cast<size_t>(ranks));
      for (const Entry& entry : plan.entries()) {
        int64_t next = 0;
        for (const Piece& piece : entry.pieces) {
          EXPECT_EQ(piece.range.begin, next);
          next = piece.range.end();
          directions[static_cast<size_t>(piece.rank)].push_back(
              {piece.direction, entry.bytes(piece.range.numel)});
        }
        EXPECT_EQ(next, entry.numel);
        straddles = straddles || entry.pieces.size() > 1;
        results[static_cast<size_t>(entry.owner)].push_back(
            {entry.result, entry.bytes(entry.numel)});
      }
      EXPECT_TRUE(straddles);
      const auto expect_apart = [](std::vector<Range> ranges, int64_t end) {
        std::sort(ranges.begin(), ranges.end(),
                  [](const Range& a, const Range& b) { return a.begin < b.begin; });
        for (size_t i = 0; i < ranges.size(); ++i) {
          EXPECT_EQ(ranges[i].begin % 64, 0);
          EXPECT_LE(ranges[i].end(), i + 1 < ranges.size() ? ranges[i + 1].begin : end);
        }
      };
      for (const auto& of_rank : directions) expect_apart(of_rank, plan.results_begin());
      for (const auto& of_rank : results) expect_apart(of_rank, plan.results_bytes());
    }
  }
}

TEST(WholeTensorPlan, BytesAreThoseOfTheFormula) {
  // A unit of [5 and 59 of padding | 16 x 16 | 5 and 59 | 8 x 4 and 96] in two slices of 256
  // elements: the first has 192 of the large matrix, the second the other 64 and the small matrix.
  const PlannedMatrices two({{16, 16}, {8, 4}}, 2, true);
  ASSERT_EQ(two.units[0].layout.numel(), 512);
  const WholeTensorPlan plan = two.plan(2);
  EXPECT_EQ(plan.results_begin(), 192 * 4);
  EXPECT_EQ(plan.results_bytes(), 256 * 4);
  EXPECT_EQ(plan.scratch_bytes(0), 160 * 4);
  EXPECT_EQ(plan.scratch_bytes(1), 80 * 4);
  EXPECT_EQ(plan.bytes(1), 768 + 1024 + 320);
  EXPECT_EQ(plan.gathered_bytes(), 2 * 1024);
  EXPECT_EQ(plan.received_bytes(0), 64 * 4);  // of the large matrix's direction
  EXPECT_EQ(plan.received_bytes(1), 64 * 4);  // of its result
  const WholeTensorPlan alone = two.plan(1);
  EXPECT_EQ(alone.whole_bytes(), 256 * 4);
  EXPECT_EQ(alone.bytes(0), 256 * 4 + 160 * 4);
  EXPECT_EQ(alone.received_bytes(0), 0);
  const PlannedMatrices wide({{16, 16}, {8, 4}}, 2, true, at::kDouble);
  EXPECT_EQ(wide.plan(2).bytes(1), 2 * (768 + 1024 + 320));
}

/// They have only directions, which lie after those that travel.
TEST(WholeTensorPlan, ParametersThatNeedNormsDoNotTravel) {
  PlannedMatrices two({{16, 16}, {8, 4}}, 2, true);
  two.parameters[0].travels = false;
  const WholeTensorPlan plan = two.plan(2);
  EXPECT_EQ(plan.travelling_bytes(), 32 * 4);
  EXPECT_EQ(plan.results_begin(), 128 + 192 * 4);
  EXPECT_EQ(plan.results_bytes(), 32 * 4);
  EXPECT_EQ(plan.entries()[0].pieces[0].direction, 128);
  EXPECT_EQ(plan.entries()[1].owner, 0);
  EXPECT_EQ(plan.scratch_bytes(1), 0);
  EXPECT_EQ(plan.received_bytes(0), 32 * 4);
  two.parameters[1].travels = false;
  EXPECT_EQ(two.plan(2).gathered_bytes(), 0);
  EXPECT_EQ(two.plan(2).bytes(0), 192 * 4);
  EXPECT_EQ(two.plan(2).received_bytes(0), 0);
}

/// Pieces then hold directions and values; owners keep the states.
TEST(WholeTensorPlan, ValuesMayTravelBesideDirectionsAndOwnersKeepStates) {
  PlannedMatrices two({{16, 16}, {8, 4}}, 2, true);
  two.parameters[0].has_values = true;
  two.parameters[0].states = {{.number = 0, .name = "rows", .sizes = {16}, .dtype = std::nullopt},
                              {.number = 2, .name = "count", .sizes = {}, .dtype = at::kLong}};
  const WholeTensorPlan plan = two.plan(2);
  const Entry& large = plan.entries()[0];
  EXPECT_EQ(large.owner, 0);
  EXPECT_EQ(large.pieces[0].direction, 0);
  EXPECT_EQ(large.pieces[0].values, 192 * 4);
  EXPECT_EQ(large.pieces[1].values, 64 * 4);
  EXPECT_EQ(plan.entries()[1].pieces[0].direction, 2 * 64 * 4);
  EXPECT_EQ(plan.results_begin(), 2 * 192 * 4);
  EXPECT_EQ(plan.received_bytes(0), 2 * 64 * 4);
  EXPECT_EQ(plan.received_bytes(1), 64 * 4);
  EXPECT_EQ(large.states, (std::vector<int64_t>{0, 64}));
  EXPECT_EQ(plan.state_bytes(0), 128);
  EXPECT_EQ(plan.state_bytes(1), 0);
  EXPECT_EQ(plan.bytes(0), 2 * 768 + 1024 + 160 * 4 + 128);
  const WholeTensorPlan alone = two.plan(1);
  EXPECT_EQ(alone.bytes(0), 256 * 4 + 80 * 4 + 128) << "scratch for the small one only";
}

}  // namespace
}  // namespace tessera::internal::testing
