// Algorithms without kernels: with Options::offload they train on a GPU as on the CPU, alone and
// beside algorithms with kernels; without it they are refused by name.
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/eight_bit_options.h"
#include "tessera/lamb_options.h"
#include "tessera/parallelize.h"
#include "tessera/tests/gpu/gpu_comparison.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/engine_rank.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/muon_plan.h"
#include "tessera/tests/support/own_optimizer.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::AdamWOptions;

bool is_bias_name(std::string_view name) { return name.ends_with("bias"); }

/// Each plan with the name of its algorithm without kernels.
std::vector<std::pair<std::string, OptimizerPlan>> plans_without_kernels() {
  const AlgorithmOptions own = elementwise<Own<Belief>>(OwnOptions());
  return {{"Muon", muon_and(AdamWOptions(0.02), MuonOptions(0.02))},
          {"LAMB", LambOptions(0.02)},
          {"LAMB", muon_and(LambOptions(0.02), MuonOptions(0.02))},
          {"LAMB", {AdamWOptions(0.02), {{"biases", &is_bias_name, LambOptions(0.02)}}}},
          {"AdamW8bit", AdamW8bitOptions(0.02)},
          {"Lion8bit", {AdamWOptions(0.02), {{"biases", &is_bias_name, Lion8bitOptions(0.01)}}}},
          {"AdaBelief", own},
          {"AdaBelief",
           {torch::optim::SGDOptions(0.1).momentum(0.9), {{"biases", &is_bias_name, own}}}}};
}

struct OffloadedRun {
  Configuration configuration;
  int world;
  Decorate (*decorate)();
};

std::vector<OffloadedRun> offloaded_runs() {
  std::vector<OffloadedRun> runs;
  const auto add = [&runs](Configuration configuration, Offload offload) {
    configuration.name += "_" + std::string(to_string(offload));
    configuration.offload = offload;
    runs.push_back({configuration, 2, &staged_over_host});
    runs.push_back({configuration, 3, &over_nccl});
  };
  for (const Configuration& configuration : named_configurations()) {
    add(configuration, Offload::kOptimizer);
  }
  add(configuration_of(Strategy::kZero3), Offload::kParameters);
  return runs;
}

TrainOptions by_plan(const OptimizerPlan& plan) {
  TrainOptions options;
  options.plan = [&plan](const torch::nn::Module&) { return plan; };
  return options;
}

TEST(AlgorithmsWithoutKernels, TrainOffloadedAsOnTheCpu) {
  const Schedule& schedule = schedule_called("OnceClipped");
  for (const auto& [name, plan] : plans_without_kernels()) {
    TrainOptions options = by_plan(plan);
    options.after_step = [](Engine& engine, int) {
      const MemoryBytes predicted = predicted_memory(engine, 1);
      for (const MemoryClass of : {MemoryClass::kHost, MemoryClass::kOptimizer})
        EXPECT_EQ(engine.memory().now()[of], predicted[of]);
    };
    std::map<int, Outcome> expected;  // by world, of all strategies
    for (const OffloadedRun& run : offloaded_runs()) {
      if (run.world > most_rank_threads()) continue;
      if (!expected.contains(run.world)) {
        expected[run.world] =
            train_on_threads(subject("OddMlp"), at::kFloat, configuration_of(Strategy::kDdp),
                             schedule, run.world, by_plan(plan));
      }
      const Outcome outcome = train_on_threads(subject("OddMlp"), at::kFloat, run.configuration,
                                               schedule, run.world, options, run.decorate());
      EXPECT_EQ(gpu_differences(outcome, expected[run.world]), "")
          << plan.lines()[0] << ", " << name << " under " << run.configuration << " at "
          << run.world;
    }
  }
}

TEST(AlgorithmsWithoutKernels, NegativeControlAnotherMomentumIsNoticed) {
  constexpr int kWorld = 2;
  if (kWorld > most_rank_threads()) GTEST_SKIP() << "needs " << kWorld << " GPUs";
  Configuration zero2 = configuration_of(Strategy::kZero2);
  const auto train = [&](double momentum, const Decorate& decorate) {
    const OptimizerPlan plan = muon_and(AdamWOptions(0.02), MuonOptions(0.02).momentum(momentum));
    return train_on_threads(subject("OddMlp"), at::kFloat, zero2, schedule_called("OnceClipped"),
                            kWorld, by_plan(plan), decorate);
  };
  const Outcome expected = train(0.95, {});
  zero2.offload = Offload::kOptimizer;
  EXPECT_NE(gpu_differences(train(0.8, staged_over_host()), expected), "");
}

TEST(AlgorithmsWithoutKernels, AreRefusedByNameOnEveryRank) {
  for (const auto& [name, plan] : plans_without_kernels()) {
    for (const Configuration& configuration : named_configurations()) {
      for (const auto& [world, decorate] :
           {std::pair{1, &alone}, {2, &staged_over_host}, {3, &over_nccl}}) {
        if (world > most_rank_threads()) continue;
        run_ranks(world, [&, make = decorate()](std::shared_ptr<ProcessGroup> given) {
          const std::shared_ptr<ProcessGroup> group = make(std::move(given));
          const std::shared_ptr<Net> net = prepare(subject("OddMlp").make(), at::kFloat, 3);
          net->to(group->device());
          EXPECT_THAT(
              message_of([&] { parallelize(net, plan, small_options_of(configuration), group); }),
              AllOf(HasSubstr("optimizer: got " + name + " on cuda:"),
                    HasSubstr("expected one that has kernels; set offload to update on the host")))
              << configuration;
        });
      }
    }
  }
}

/// The refused call changes nothing.
TEST(AlgorithmsWithoutKernels, AreRefusedWhereAGroupIsAdded) {
  constexpr int kWorld = 2;
  if (kWorld > most_rank_threads()) GTEST_SKIP() << "needs " << kWorld << " GPUs";
  const OptimizerPlan plan = AdamWOptions(0.02);
  const auto train = [&](bool adds) {
    TrainOptions options = by_plan(plan);
    options.after_step = [adds](Engine& engine, int step) {
      if (step > 0) return;
      engine.set_trainable(&is_bias_name);
      if (!adds) return;
      const auto is_weight = [](std::string_view name) { return !is_bias_name(name); };
      EXPECT_THAT(message_of([&] {
                    engine.add_group({"rest", is_weight, MuonOptions(0.02)});
                  }),
                  HasSubstr("optimizer: got Muon on cuda:"));
    };
    return train_on_threads(subject("OddMlp"), at::kFloat, configuration_of(Strategy::kZero2),
                            schedule_called("OnceClipped"), kWorld, options, staged_over_host());
  };
  EXPECT_EQ(gpu_differences(train(true), train(false)), "");
}

}  // namespace
}  // namespace tessera::internal::testing
