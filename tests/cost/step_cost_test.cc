#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <torch/torch.h>

#include "tessera/lamb_options.h"
#include "tessera/parallelize.h"
#include "tessera/tests/cost/allocations.h"
#include "tessera/tests/cost/configuration_sizes.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/muon_plan.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"

// The cost of a steady step apart from its computation, as numbers of collectives and allocations.
// A small step consists of these only.

namespace tessera::internal::testing {
namespace {

constexpr int kUnits = 3;

/// The same number of units under every configuration: layers of one bucket each.
torch::nn::Sequential small_model() {
  torch::nn::Sequential model;
  for (int i = 0; i < kUnits; ++i) model->push_back(torch::nn::Linear(16, 16));
  return model;
}

Options small_options(const Configuration& configuration) {
  Options options = options_of(configuration);
  set_buckets(options, configuration, 1088);  // 272 fp32 values: a layer
  if (configuration.splits_parameters()) options.prefetch = false;
  return options;
}

/// A rank that trains the small model and records its communication.
struct SmallRank {
  SmallRank(const std::shared_ptr<ProcessGroup>& group, const Configuration& configuration,
            const OptimizerPlan& plan = torch::optim::AdamWOptions(0.01))
      : world(std::make_shared<RecordingGroup>(group, recording)),
        engine(parallelize(model, plan, small_options(configuration), world)) {
    engine->set_schedule([](int64_t step) { return 0.01 / static_cast<double>(1 + step); });
  }

  void backward() { model->forward(input).pow(2).mean().backward(); }
  void train() {
    backward();
    engine->step();
  }

  torch::nn::Sequential model = small_model();
  at::Tensor input = at::ones({2, 16});
  std::shared_ptr<Recording> recording = std::make_shared<Recording>();
  std::shared_ptr<ProcessGroup> world;
  std::unique_ptr<Engine> engine;
};

using Counts = std::map<std::string, int64_t>;

/// How often each collective and each read ran since the recording was cleared.
Counts counts_of(const Recording& recording) {
  Counts counts;
  for (const RecordedCall& call : recording.calls()) ++counts[call.op];
  return counts;
}

class StepCost : public ::testing::TestWithParam<ConfigurationSize> {
 protected:
  const Configuration& configuration() const { return GetParam().first; }
  int size() const { return GetParam().second; }

  /// A step needs a reduction per unit, the way back for parameters, two small agreements (the end
  /// of backward, the vote), and a barrier if others read new values.
  Counts expected() const {
    const Degrees degrees = configuration().degrees_at(size());
    Counts counts{{"all_gather", 2}};
    counts[degrees.optimizer > 1 ? "reduce_scatter" : "all_reduce"] += kUnits;
    if (configuration().shares_at(size())) {
      counts["barrier"] = 1;
      return counts;
    }
    if (degrees.optimizer > 1 && degrees.parameters == 1) counts["all_gather"] += kUnits;
    if (degrees.parameters > 1) {
      counts["barrier"] = 1;
      // Forward gathers every unit. Backward still has the last one, and does not need the first,
      // because no gradient of its input is wanted. A gather reads every rank's shard.
      const bool stays_whole = configuration().reshard_after_forward == 1;
      const int gathers = stays_whole ? kUnits : 2 * kUnits - 2;
      counts["read"] = static_cast<int64_t>(gathers) * degrees.parameters;
    }
    return counts;
  }

  void on_ranks(const std::function<void(SmallRank&)>& body,
                const OptimizerPlan& plan = torch::optim::AdamWOptions(0.01)) const {
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
      SmallRank rank(world, configuration(), plan);
      ASSERT_EQ(rank.engine->units().size(), static_cast<size_t>(kUnits));
      body(rank);
    });
  }
};

TEST_P(StepCost, HasNoCollectiveAndNoReadTooMany) {
  on_ranks([this](SmallRank& rank) {
    for (int step = 0; step < 5; ++step) {
      rank.recording->clear();
      rank.train();
      EXPECT_EQ(counts_of(*rank.recording), expected()) << "step " << step;
    }
  });
}

/// The negative control.
TEST_P(StepCost, OneBarrierMoreWouldShow) {
  on_ranks([this](SmallRank& rank) {
    rank.recording->clear();
    rank.train();
    rank.world->barrier("one more");
    EXPECT_NE(counts_of(*rank.recording), expected());
  });
}

void expect_steady_allocations(SmallRank& rank) {
  std::vector<int64_t> heap;
  for (int step = 0; step < 6; ++step) {
    rank.backward();
    rank.recording->clear();  // recording allocates on the heap
    const int64_t engine_before = rank.engine->memory().allocations();
    const int64_t heap_before = heap_allocations();
    rank.engine->step();
    heap.push_back(heap_allocations() - heap_before);
    if (step < 2) continue;
    EXPECT_EQ(rank.engine->memory().allocations(), engine_before);
  }
  EXPECT_EQ(heap[2], heap[5]) << ::testing::PrintToString(heap);
  EXPECT_LE(heap[5], heap[0]) << ::testing::PrintToString(heap);
  rank.backward();
  const TensorAllocations tensors;
  rank.engine->step();
  EXPECT_EQ(tensors.count(), 0);
}

TEST_P(StepCost, AsksForNoTensorMemoryAndAsOftenForTheHeapInEveryStep) {
  on_ranks(&expect_steady_allocations);
}

TEST_P(StepCost, SoItDoesUnderMuonAndLamb) {
  on_ranks(&expect_steady_allocations, muon_and(LambOptions(0.01), MuonOptions(0.01)));
}

/// Two more fences, for a matrix in each unit.
TEST_P(StepCost, MuonHasTwoBarriersMore) {
  on_ranks(
      [this](SmallRank& rank) {
        rank.recording->clear();
        rank.train();
        Counts counts = counts_of(*rank.recording);
        const Counts without = expected();
        const bool is_sliced = configuration().degrees_at(size()).optimizer > 1;
        const int64_t barriers = without.contains("barrier") ? without.at("barrier") : 0;
        EXPECT_EQ(counts["barrier"], barriers + (is_sliced ? 2 : 0));
      },
      muon_and(torch::optim::AdamWOptions(0.01), MuonOptions(0.01)));
}

std::vector<ConfigurationSize> configurations_and_sizes() {
  std::vector<ConfigurationSize> all = usual_configuration_sizes();
  all.emplace_back(apart(hybrid(2, 2, 2)), 2);
  all.emplace_back(apart(hybrid(3, 3, 3)), 3);
  return all;
}

INSTANTIATE_TEST_SUITE_P(, StepCost, ::testing::ValuesIn(configurations_and_sizes()),
                         &name_of_configuration_size);

/// Negative control: a step that allocates memory is noticed.
TEST(StepCostControl, AStepThatAllocatesIsCounted) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    SmallRank rank(world, configuration_of(Strategy::kZero2));
    rank.train();
    rank.train();
    rank.backward();
    const TensorAllocations tensors;
    const at::Tensor copy = rank.input.clone();
    rank.engine->step();
    EXPECT_EQ(tensors.count(), 1) << copy.numel();
  });
}

}  // namespace
}  // namespace tessera::internal::testing
