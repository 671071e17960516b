#include "tessera/zero/state/streamed_state.h"

#include <mutex>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/state_streams.h"

// A rank's own part of the state, written to a sink and read from a source, without an engine:
// random bits in every slice, so that NaNs, -0 and padding matter.
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr StateModel kFloats{};
constexpr StateModel kHalfs{.dtype = at::kBFloat16, .has_scaler = true};

/// What the ranks of a run made by fill(seed) write.
std::vector<StateDict> written_at(int world, const StateConfiguration& configuration,
                                  StateModel model, uint64_t seed = 1) {
  std::vector<StateDict> shares(static_cast<size_t>(world));
  run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    StateRun run(group, configuration, model);
    run.fill(seed);
    StateCollector sink;
    run.save(sink);
    shares[static_cast<size_t>(group->rank())] = sink.take();
  });
  return shares;
}

/// Reads `whole` over other values; returns what differs from `seed`, or "".
std::string read_at(int world, const StateConfiguration& configuration, StateModel model,
                    const StateDict& whole, uint64_t seed = 1) {
  std::string text;
  std::mutex mutex;
  run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    StateRun run(group, configuration, model);
    run.fill(seed + 1);
    StateReader source(whole);
    run.load(source);
    const std::string differences = run.differences_from(seed);
    const std::lock_guard lock(mutex);
    if (!differences.empty()) text += configuration.name + ":\n" + differences;
  });
  return text;
}

/// Returns the error, which must be the same on all ranks; they must keep their values. `spoil`
/// changes a rank's source.
std::string refusal_at(int world, const StateConfiguration& configuration, StateModel model,
                       const StateDict& whole,
                       const std::function<void(int, StateReader&)>& spoil = nullptr) {
  std::set<std::string> texts;
  std::mutex mutex;
  run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    StateRun run(group, configuration, model);
    run.fill(5);
    StateReader source(whole);
    if (spoil) spoil(group->rank(), source);
    std::string text;
    try {
      run.load(source);
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
      if (group->rank() == 0) {  // fill() gives only this rank the expected buffers
        EXPECT_EQ(run.differences_from(5), "");
      }
    }
    const std::lock_guard lock(mutex);
    texts.insert(text);
  });
  EXPECT_EQ(texts.size(), 1u) << "all ranks say the same";
  return *texts.begin();
}

class StreamedStateAt : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, StreamedStateAt, ::testing::ValuesIn(spanning_worlds()));

TEST_P(StreamedStateAt, RanksTogetherWriteEveryElementOnce) {
  for (const StateModel model : {kFloats, kHalfs}) {
    for (const StateConfiguration& configuration : state_configurations(world())) {
      EXPECT_EQ(bit_differences(joined(written_at(world(), configuration, model)),
                                StateRun::expected(1, model)),
                "")
          << configuration.name;
    }
  }
}

TEST_P(StreamedStateAt, WritesFromItsOwnMemory) {
  struct Aliases : StateSink {
    void begin(const std::vector<StateOutline>&) override {}
    void write(size_t, int64_t, const at::Tensor& values) override {
      copies += values.storage().nbytes() == values.nbytes() ? 1 : 0;
      ++pieces;
    }
    int copies = 0;
    int pieces = 0;
  };
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    StateRun run(group, state_configurations(world()).front());
    Aliases sink;
    run.save(sink);
    // Only numbers and buffers, which rank 0 writes, are copied.
    if (group->rank() > 0) {
      EXPECT_GT(sink.pieces, 0);
      EXPECT_EQ(sink.copies, 0);
    } else {
      EXPECT_GT(sink.pieces, sink.copies);
    }
  });
}

TEST_P(StreamedStateAt, ReadsWhatAnyConfigurationWrote) {
  for (const StateModel model : {kFloats, kHalfs}) {
    const StateDict whole = StateRun::expected(1, model);
    for (const StateConfiguration& to : state_configurations(world())) {
      EXPECT_EQ(read_at(world(), to, model, whole), "");
    }
  }
}

TEST_P(StreamedStateAt, ReadsAnotherOrderOfMemory) {
  const StateModel contiguous{.is_contiguous = true};
  for (const StateConfiguration& to : state_configurations(world())) {
    std::vector<StateDict> shares(static_cast<size_t>(world()));
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      StateRun run(group, to, contiguous);
      run.fill(2);
      const StateDict channels_last = StateRun::expected(1, kFloats);
      StateReader source(channels_last);
      run.load(source);
      StateCollector sink;
      run.save(sink);
      shares[static_cast<size_t>(group->rank())] = sink.take();
    });
    const StateDict whole = joined(std::move(shares));
    EXPECT_EQ(bit_differences(whole, StateRun::expected(1, kFloats)), "") << to.name;
    EXPECT_EQ(whole.entries.at("model.conv.weight").strides, (std::vector<int64_t>{12, 4, 2, 1}));
  }
}

TEST_P(StreamedStateAt, ARankReadsItsOwnPartOnly) {
  const StateDict whole = StateRun::expected(1, kFloats);
  int64_t all = 0;
  for (const auto& [name, entry] : whole.entries) all += entry.numel();
  for (const StateConfiguration& to : state_configurations(world())) {
    if (to.name != "zero3") continue;
    std::mutex mutex;
    int64_t read = 0;
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      StateRun run(group, to);
      StateReader source(whole);
      run.load(source);
      EXPECT_LE(source.elements, all);
      const std::lock_guard lock(mutex);
      read += source.elements;
    });
    // Every rank reads numbers and buffers.
    const std::set<std::string> buffers = {"model.norm.mean", "model.norm.count", "model.mask",
                                           "model.table", "model.nothing"};
    int64_t replicated = 0;
    for (const auto& [name, entry] : whole.entries) {
      const bool is_split = name.ends_with(".exp_avg") || name.ends_with(".exp_avg_sq") ||
                            (name.starts_with("model.") && !buffers.contains(name));
      if (!is_split) replicated += entry.numel();
    }
    EXPECT_EQ(read, all + (world() - 1) * replicated);
  }
}

TEST_P(StreamedStateAt, ListsWhatDoesNotFitAndChangesNothing) {
  StateDict state = StateRun::expected(1, kFloats);
  state.entries.erase("model.fc.bias");
  state.entries["model.old"] = state.entries.at("engine.steps");
  state.entries.at("model.scale").dtype = at::kDouble;
  state.entries.at("model.fc.weight").sizes = {7, 13};
  const std::string text =
      refusal_at(world(), state_configurations(world()).back(), kFloats, state);
  EXPECT_THAT(text, AllOf(HasSubstr(world() > 1 ? "[state] all ranks: read_state:"
                                                : "[state] rank 0: read_"),
                          HasSubstr("\n  'model.fc.bias': missing"),
                          HasSubstr("\n  'model.old': got an entry that this run does not have"),
                          HasSubstr("\n  'model.scale': got dtype Double, expected Float"),
                          HasSubstr("\n  'model.fc.weight': got shape [7, 13], expected [13, 7]"),
                          Not(HasSubstr("frozen"))));
}

TEST_P(StreamedStateAt, OneRanksUnreadableSourceIsRefusedByAll) {
  const StateDict whole = StateRun::expected(1, kFloats);
  const StateConfiguration configuration = state_configurations(world()).back();
  const int last = world() - 1;
  EXPECT_THAT(refusal_at(world(), configuration, kFloats, whole,
                         [&](int rank, StateReader& source) {
                           if (rank == last) source.problem = "shard 3: block 7 differs";
                         }),
              AllOf(HasSubstr("rank " + std::to_string(last) + ": read_state"),
                    HasSubstr("shard 3: block 7 differs")));
  EXPECT_THAT(refusal_at(world(), configuration, kFloats, whole,
                         [&](int rank, StateReader& source) {
                           if (rank == last) source.throws_a_number = true;
                         }),
              AllOf(HasSubstr("rank " + std::to_string(last) + ": read_state"),
                    HasSubstr("an exception of unknown type")));
  EXPECT_THAT(refusal_at(world(), configuration, kFloats, whole,
                         [&](int rank, StateReader& source) {
                           if (rank == last) source.fails_after = 0;
                         }),
              AllOf(HasSubstr("rank " + std::to_string(last) + ": read_state"),
                    HasSubstr("the disk is gone")));
  StateDict odd = whole;
  odd.entries.at("optimizer.fc.bias.step").pieces = {{0, torch::full({1}, -1, torch::kLong)}};
  EXPECT_THAT(refusal_at(world(), configuration, kFloats, odd),
              HasSubstr("'optimizer.fc.bias.step': got -1, expected at least 0"));
}

TEST(StreamedStateNegativeControl, WhatTheComparisonsMustCatch) {
  const int world = 3;
  const StateConfiguration configuration = state_configurations(world).back();
  StateDict whole = joined(written_at(world, configuration, kFloats));
  ASSERT_EQ(read_at(world, configuration, kFloats, whole), "");
  at::Tensor& values = whole.entries.at("optimizer.wide.weight.exp_avg").pieces[0].values;
  values = values.clone();
  static_cast<unsigned char*>(values.mutable_data_ptr())[5] ^= 1;
  EXPECT_THAT(read_at(world, configuration, kFloats, whole), HasSubstr("differs")) << "one bit";
}

}  // namespace
}  // namespace tessera::internal::testing
