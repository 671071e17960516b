#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/cost/allocations.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"

// Gathering and freeing a unit costs one copy and one pointer, whatever its number of parameters.

namespace tessera::internal::testing {
namespace {

/// A unit of `count` parameters.
struct Many : torch::nn::Module {
  explicit Many(int count) {
    for (int i = 0; i < count; ++i) {
      parameters.push_back(register_parameter(absl::StrCat("p", i), torch::ones({8})));
    }
  }
  std::vector<at::Tensor> parameters;
};

struct Pair : torch::nn::Module {
  explicit Pair(int count)
      : first(register_module("first", std::make_shared<Many>(count))),
        second(register_module("second", std::make_shared<Many>(count))) {}
  std::shared_ptr<Many> first;
  std::shared_ptr<Many> second;
};

/// What one rank's accesses cost.
struct Cost {
  int64_t heap = 0;
  int64_t tensors = 0;
  int64_t reads = 0;
  int64_t gathers = 0;
  int64_t frees = 0;
  int64_t engine = 0;  ///< allocations of the engine
  friend bool operator==(const Cost&, const Cost&) = default;
};

std::ostream& operator<<(std::ostream& stream, const Cost& cost) {
  return stream << "heap " << cost.heap << ", tensors " << cost.tensors << ", reads " << cost.reads
                << ", gathers " << cost.gathers << ", frees " << cost.frees << ", engine "
                << cost.engine;
}

/// The units that operators read in turn.
enum class Turns : uint8_t { kOfTwo, kOfOne };

constexpr int kAccesses = 20;

/// One rank with two units of `parameters` each.
struct PairRank {
  PairRank(std::shared_ptr<ProcessGroup> group, int parameters, Turns turns_of_units)
      : model(std::make_shared<Pair>(parameters)), turns(turns_of_units) {
    Options options = options_of(apart(configuration_of(Strategy::kZero3)));
    options.prefetch = false;
    engine = parallelize(model, torch::optim::AdamWOptions(0.01), options, group);
    access();  // learns the order
  }

  /// Reads kAccesses times, from the units in turn.
  void access() {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < kAccesses; ++i) {
      const bool is_second = turns == Turns::kOfTwo && i % 2 == 1;
      at::neg_out(result, (is_second ? model->second : model->first)->parameters.back());
    }
  }

  std::shared_ptr<Pair> model;
  Turns turns;
  at::Tensor result = at::empty({8});
  std::unique_ptr<Engine> engine;
};

std::vector<Cost> cost_of_accesses(int parameters, int size, Turns turns) {
  std::vector<Cost> by_rank(static_cast<size_t>(size));
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
    Cost& cost = by_rank[static_cast<size_t>(world->rank())];
    {
      PairRank rank(world, parameters, turns);
      // Ranks are threads: each thread notes the others' observers once, on the heap.
      world->barrier("all engines are made");
      rank.access();
      const GatherCounts counts = rank.engine->gather_counts();
      const int64_t engine_before = rank.engine->memory().allocations();
      const int64_t before = heap_allocations();
      rank.access();
      cost.heap = heap_allocations() - before;
      cost.engine = rank.engine->memory().allocations() - engine_before;
      cost.gathers = rank.engine->gather_counts().gathers - counts.gathers;
      cost.frees = rank.engine->gather_counts().frees - counts.frees;
      world->barrier("all have counted");
      const TensorAllocations tensors;
      rank.access();
      cost.tensors = tensors.count();
    }
    // Separate from the above, because a recording allocates on the heap.
    const auto recording = std::make_shared<Recording>();
    PairRank rank(std::make_shared<RecordingGroup>(world, recording), parameters, turns);
    recording->clear();
    rank.access();
    cost.reads = recording->count("read");
  });
  return by_rank;
}

class GatherCost : public ::testing::TestWithParam<int> {};

TEST_P(GatherCost, DoesNotDependOnTheNumberOfParameters) {
  const int size = GetParam();
  const std::vector<Cost> one = cost_of_accesses(1, size, Turns::kOfTwo);
  const std::vector<Cost> many = cost_of_accesses(64, size, Turns::kOfTwo);
  EXPECT_EQ(one, many);
  for (const Cost& cost : many) {
    EXPECT_EQ(cost.gathers, kAccesses);
    EXPECT_EQ(cost.frees, kAccesses);
    EXPECT_EQ(cost.reads, kAccesses * size) << "one per shard";
    EXPECT_EQ(cost.tensors, 0) << "unsharded-parameter buffers are there already";
    EXPECT_EQ(cost.engine, 0);
  }
}

/// Negative control: an access that gathers costs more than one that finds its unit whole.
TEST_P(GatherCost, IsMoreThanThatOfAnAccessToAWholeUnit) {
  const int size = GetParam();
  const Cost gathering = cost_of_accesses(64, size, Turns::kOfTwo)[0];
  const Cost resident = cost_of_accesses(64, size, Turns::kOfOne)[0];
  RecordProperty("heap_per_gather", absl::StrCat((gathering.heap - resident.heap) / kAccesses,
                                                 " beyond ", resident.heap / kAccesses));
  EXPECT_EQ(resident.gathers, 0);
  EXPECT_EQ(resident.reads, 0);
  EXPECT_LT(resident.heap, gathering.heap);
}

INSTANTIATE_TEST_SUITE_P(, GatherCost, ::testing::Values(2, 3),
                         [](const auto& info) { return "World" + std::to_string(info.param); });

}  // namespace
}  // namespace tessera::internal::testing
