// Muon under engines: memory and traffic as predicted, state that moves between worlds, averages
// and loss scales, and refusals on all ranks. Bits: tests/equivalence/muon_equivalence_test.cc.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/group_without_windows.h"
#include "tessera/tests/support/muon_plan.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/state/saved_rank.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

OptimizerPlan muon_and_adamw() {
  return muon_and(torch::optim::AdamWOptions(0.02), MuonOptions(0.02));
}

struct MuonRank : EngineRank<Net> {
  MuonRank(std::shared_ptr<ProcessGroup> group, const std::string& model, const Options& options,
           uint64_t seed = 3)
      : EngineRank(std::move(group), prepare(subject(model).make(), at::kFloat, seed),
                   muon_and_adamw(), options),
        of(subject(model)),
        dtype(options.precision.parameters.value_or(at::kFloat)) {}
  at::Tensor loss(int step) const override {
    const Schedule schedule{.name = ""};
    const Moment moment{.step = step, .rank = world->rank()};
    return engine->scale(loss_of(*net, batch_of(of, dtype, schedule, moment, 0), moment, schedule));
  }
  void train(int begin, int end) const {
    for (int step = begin; step < end; ++step) EngineRank::train(step);
  }

  const Subject& of;
  at::ScalarType dtype;
};

class MuonEngine : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, MuonEngine, ::testing::ValuesIn(spanning_worlds()));

TEST_P(MuonEngine, MemoryIsAsPredictedToTheByte) {
  for (const char* const model : {"OddMlp", "MixedDtypes"}) {
    for (const bool has_windows : {true, false}) {
      for (const Configuration& configuration : spanning_configurations(world())) {
        const auto reshard = configuration.reshard_after_forward;
        if (!has_windows && (configuration.shares_parameters || reshard.has_value())) continue;
        run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
          if (!has_windows) group = std::make_shared<GroupWithoutWindows>(std::move(group));
          const MuonRank run(std::move(group), model, small_options_of(configuration));
          run.train(0, 1);
          const MemoryBytes before = run.engine->memory().now();
          EXPECT_EQ(before[MemoryClass::kOptimizer],
                    predicted_memory(*run.engine, 1)[MemoryClass::kOptimizer])
              << configuration << " " << model;
          run.train(1, 3);
          EXPECT_EQ(run.engine->memory().now(), before) << configuration << " " << model;
        });
      }
    }
  }
}

/// Named reads of other ranks in a step: pieces of directions, pieces of results.
TEST_P(MuonEngine, TrafficIsThatOfTheFormula) {
  for (const Configuration& configuration : named_configurations()) {
    std::vector<int64_t> read(static_cast<size_t>(world()));
    std::vector<int64_t> expected(static_cast<size_t>(world()));
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const auto rank = static_cast<size_t>(group->rank());
      const auto recording = std::make_shared<Recording>();
      const MuonRank run(std::make_shared<RecordingGroup>(std::move(group), recording), "OddMlp",
                         small_options_of(configuration));
      run.train(0, 2);
      run.backward(2);
      recording->clear();
      run.engine->step();
      int64_t barriers = 0;
      for (const RecordedCall& call : recording->calls()) {
        if (call.op == "read") read[rank] += call.tensor_bytes;
        if (call.op == "barrier" && call.tag.find("directions") != std::string::npos) ++barriers;
      }
      const bool is_sliced = run.engine->degrees().optimizer > 1;
      EXPECT_EQ(barriers, is_sliced ? 2 : 0) << configuration;
      // Layers of 7 x 13, 13 x 13 and 13 x 5 cost 637, 2197 and 325, so rank 0 owns the second,
      // rank 1 the first, and the rank with the least work the last.
      const std::map<std::string, int> owners = {
          {"layer0.weight", 1}, {"layer1.weight", 0}, {"layer2.weight", world() > 2 ? 2 : 1}};
      for (const PlannedUnit& unit : run.engine->units()) {
        for (const Segment& segment :
             unit.layout.segments(unit.layout.part(static_cast<int>(rank), world()))) {
          const auto owner =
              owners.find(run.engine->parameters()[unit.parameters[segment.parameter]].name);
          if (!is_sliced || owner == owners.end()) continue;
          if (owner->second != static_cast<int>(rank)) expected[rank] += segment.numel * 4;
        }
        for (size_t position = 0; is_sliced && position < unit.parameters.size(); ++position) {
          const auto owner = owners.find(run.engine->parameters()[unit.parameters[position]].name);
          if (owner == owners.end() || owner->second != static_cast<int>(rank)) continue;
          expected[rank] += unit.layout.parameter_range(position).numel * 4;
          for (const Segment& segment :
               unit.layout.segments(unit.layout.part(static_cast<int>(rank), world()))) {
            if (segment.parameter == position) expected[rank] -= segment.numel * 4;
          }
        }
      }
    });
    EXPECT_EQ(read, expected) << configuration;
  }
}

TEST_P(MuonEngine, MovesBetweenWorldsThroughACheckpoint) {
  const TemporaryDirectory directory;
  StateDict expected;
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const MuonRank run(std::move(group), "OddMlp",
                       small_options_of(configuration_of(Strategy::kZero3)));
    run.train(0, 2);
    save_checkpoint(*run.engine, directory.path());
    StateDict state = run.engine->state_dict(StateScope::kOneRank);
    if (run.world->rank() == 0) expected = std::move(state);
  });
  EXPECT_TRUE(expected.entries.contains("optimizer.layer1.weight.momentum_buffer"));
  EXPECT_FALSE(expected.entries.contains("optimizer.layer1.bias.momentum_buffer"));
  EXPECT_TRUE(expected.entries.contains("optimizer.matrices.algorithm.Muon"));
  run_ranks(world() % 4 + 1, [&](std::shared_ptr<ProcessGroup> group) {
    const MuonRank run(std::move(group), "OddMlp",
                       small_options_of(configuration_of(Strategy::kZero1)), 77);
    run.train(0, 1);
    ASSERT_TRUE(load_checkpoint(*run.engine, directory.path()).has_value());
    EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), expected), "");
    run.train(2, 3);
  });
}

/// An average of the weights, a loss scale, and bf16 parameters over masters, all at once: the
/// state after a step has ddp's bits.
TEST_P(MuonEngine, AveragesMastersAndLossScalesHaveTheBitsOfDdp) {
  const auto states_of = [&](const Configuration& configuration) {
    return on_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      Options options = small_options_of(in_bfloat16(configuration));
      options.average = WeightAverage{.decay = 0.9};
      options.loss_scale = LossScale{.initial = 256, .growth_interval = 2};
      options.max_grad_value = 0.01;
      const MuonRank run(std::move(group), "OddMlp", options);
      run.train(0, 4);
      return run.engine->state_dict(StateScope::kEveryRank);
    });
  };
  const States expected = states_of(configuration_of(Strategy::kDdp));
  EXPECT_TRUE(expected[0].entries.contains("optimizer.layer1.weight.average"));
  for (const Configuration& configuration : configurations_at(world())) {
    EXPECT_EQ(bit_differences(states_of(configuration).back(), expected.back()), "")
        << configuration;
  }
}

/// Its state and its count do not change.
TEST_P(MuonEngine, AMatrixThatNobodyUsedIsLeftAlone) {
  for (const Configuration& configuration : configurations_at(world())) {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const MuonRank run(std::move(group), "UnusedEverywhere", small_options_of(configuration));
      const std::string name = "unused.weight";
      const auto before = run.engine->state_dict(StateScope::kEveryRank);
      run.train(0, 2);
      const auto after = run.engine->state_dict(StateScope::kEveryRank);
      for (const std::string& entry :
           {"optimizer." + name + ".momentum_buffer", "optimizer." + name + ".step"}) {
        ASSERT_TRUE(after.entries.contains(entry)) << entry;
        EXPECT_TRUE(
            have_same_bits(after.entries.at(entry).tensor(), before.entries.at(entry).tensor()));
      }
      const std::string first = "optimizer.first.weight.momentum_buffer";
      EXPECT_FALSE(
          have_same_bits(after.entries.at(first).tensor(), before.entries.at(first).tensor()));
    });
  }
}

/// A fence, a read of a direction, a read of a result: any failure on one rank after the vote ends
/// the step on all ranks.
TEST(MuonEngineFailures, ACallThatFailsOnOneRankEndsTheStepOnAll) {
  constexpr int kWorld = 3;
  std::vector<std::string> failed;
  for (int64_t call = 0;; ++call) {
    const auto recording = std::make_shared<Recording>();
    const std::vector<std::string> errors =
        run_ranks_expecting_errors(kWorld, [&](std::shared_ptr<ProcessGroup> group) {
          const bool fails = group->rank() == 1;
          const auto own = fails ? recording : std::make_shared<Recording>();
          const MuonRank run(std::make_shared<RecordingGroup>(group, own), "OddMlp",
                             small_options_of(configuration_of(Strategy::kZero2)));
          run.backward(0);
          if (fails) recording->fail_call(call);
          run.engine->step();
          group->barrier("whatever comes next");
        });
    if (errors[1].empty()) break;
    for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("was made to fail"));
    failed.push_back(errors[1]);
  }
  const auto has_failed = [&failed](const std::string& part) {
    return std::any_of(failed.begin(), failed.end(), [&part](const std::string& error) {
      return error.find(part) != std::string::npos;
    });
  };
  EXPECT_TRUE(has_failed("barrier 'directions'"));
  EXPECT_TRUE(has_failed("read 'layer1.weight'"));
  EXPECT_TRUE(has_failed("barrier 'results of directions'"));
}

TEST(MuonEngineRefusals, AHyperParameterChangedOnOneRankIsNamedOnAllOfThem) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    const MuonRank run(std::move(world), "OddMlp",
                       small_options_of(configuration_of(Strategy::kZero2)));
    run.backward(0);
    if (run.world->rank() == 1) {
      static_cast<MuonOptions&>(run.engine->optimizer().param_groups()[1].options()).ns_steps(6);
    }
    EXPECT_THAT([&] { run.engine->step(); },
                ThrowsMessage<c10::Error>(HasSubstr("group 'matrices': ns_steps")));
  });
}

}  // namespace
}  // namespace tessera::internal::testing
