// On a GPU the result of a step is known one step later, and a refused step is not applied.
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/gpu_for_tests.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

/// A rank that trains one layer.
struct Trainer {
  Trainer(std::shared_ptr<ProcessGroup> group, Options options)
      : world(std::move(group)), model(std::make_shared<torch::nn::LinearImpl>(3, 5)) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.fill_(0.5);
    model->to(world->device());
    engine = parallelize(model, OptimizerPlan(torch::optim::AdamWOptions(0.1)), std::move(options),
                         world);
  }

  void backward(double factor = 1.0) {
    const at::Tensor input = at::ones({2, 3}, at::TensorOptions().device(world->device()));
    engine->scale(model->forward(input).sum() * factor).backward();
  }
  /// Without a gather, which would need all ranks.
  void add_locally() {
    const auto scope = engine->no_sync();
    engine->accumulate({{"weight", at::ones({5, 3}, world->device())}});
  }
  StepResult step(double factor = 1.0) {
    backward(factor);
    return engine->step();
  }
  at::Tensor weight() {
    const auto whole = engine->full_parameters();
    return model->weight.detach().cpu().clone();
  }
  std::shared_ptr<ProcessGroup> world;
  std::shared_ptr<torch::nn::LinearImpl> model;
  std::unique_ptr<Engine> engine;
};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class AsynchronousStep : public ::testing::TestWithParam<std::pair<Strategy, const char*>> {
 protected:
  void run(int size, const std::function<void(Trainer&)>& body, Options options = {}) {
    if (size > most_rank_threads()) GTEST_SKIP() << "needs " << size << " GPUs";
    options.strategy = GetParam().first;
    const Decorate on_gpus =
        std::string(GetParam().second) == "nccl" ? over_nccl() : staged_over_host();
    run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
      Trainer trainer(on_gpus(std::move(world)), options);
      body(trainer);
    });
  }
};

TEST_P(AsynchronousStep, IsThatOfTheStepBefore) {
  run(2, [](Trainer& rank) {
    EXPECT_FALSE(rank.step().committed) << "nothing is known at first";
    const StepResult second = rank.step();
    EXPECT_TRUE(second.committed);
    EXPECT_EQ(second.step, 1);
    EXPECT_EQ(second.used_parameters, 2);
    EXPECT_EQ(rank.engine->last_result().step, 1);
    rank.engine->wait();
    EXPECT_EQ(rank.engine->last_result().step, 2);
    rank.engine->wait();
    EXPECT_EQ(rank.engine->last_result().step, 2);
  });
}

// A skipped step is noticed late, but before the next step needs its rate.
TEST_P(AsynchronousStep, DoesNotCountSkippedStepsForTheSchedule) {
  Options skipping;
  skipping.on_non_finite = NonFinite::kSkip;
  run(
      2,
      [&skipping](Trainer& rank) {
        std::vector<int64_t> asked;
        rank.engine->set_schedule([&asked](int64_t step) {
          asked.push_back(step);
          return 0.1 / static_cast<double>(1 + step);
        });
        rank.step();
        rank.step(kNaN);
        for (int step = 0; step < 2; ++step) rank.step();
        EXPECT_THAT(asked, ::testing::ElementsAre(0, 1, 1, 2));

        Options options = skipping;
        options.strategy = rank.engine->strategy();
        Trainer other(rank.world, options);
        for (int step = 0; step < 3; ++step) {
          other.engine->optimizer().param_groups()[0].options().set_lr(
              0.1 / static_cast<double>(1 + step));
          other.step();
        }
        EXPECT_TRUE(rank.weight().equal(other.weight()));
      },
      skipping);
}

TEST_P(AsynchronousStep, RefusesNonFiniteGradientsOneStepLate) {
  run(3, [](Trainer& rank) {
    rank.step();
    const at::Tensor before = rank.weight();
    rank.step(rank.world->rank() == 1 ? kNaN : 1.0);
    rank.backward();
    const std::string error = message_of([&] { rank.engine->step(); });
    EXPECT_THAT(error, HasSubstr("non-finite gradient: the ranks together produced 20 NaN or"
                                 " infinite elements, first in 'weight'"));
    EXPECT_THAT(error, HasSubstr("the step() before this one (Options::asynchronous_step)"));
    EXPECT_EQ(rank.engine->last_result().step, 1);
    EXPECT_TRUE(rank.weight().equal(before)) << "something was applied";
    rank.step();
    rank.engine->wait();
    EXPECT_EQ(rank.engine->last_result().step, 2);
    EXPECT_FALSE(rank.weight().equal(before));
  });
}

TEST_P(AsynchronousStep, RefusesWhatOneRankFindsWrong) {
  run(3, [](Trainer& rank) {
    rank.step();
    const at::Tensor before = rank.weight();
    rank.backward();
    if (rank.world->rank() == 2) {
      rank.engine->optimizer().param_groups()[0].params().clear();
    }
    rank.engine->step();
    const std::string error = message_of([&] { rank.engine->wait(); });
    EXPECT_THAT(error, HasSubstr("[step] rank 2: [optim] defaults: got a foreign list"));
    EXPECT_TRUE(rank.weight().equal(before)) << "something was applied";
  });
}

TEST_P(AsynchronousStep, RefusesWhatRanksDifferIn) {
  run(3, [](Trainer& rank) {
    rank.step();
    const at::Tensor before = rank.weight();
    auto& options = static_cast<torch::optim::AdamWOptions&>(
        rank.engine->optimizer().param_groups()[0].options());
    if (rank.world->rank() == 1) options.lr(0.2);
    rank.step();
    rank.backward();
    EXPECT_THAT(message_of([&] { rank.engine->step(); }),
                HasSubstr("[step] hyper-parameter defaults: lr differs: rank 0 has 0.1, rank 1 "
                          "has 0.2"));
    EXPECT_TRUE(rank.weight().equal(before)) << "something was applied";
    options.lr(0.1);
    rank.step();
    rank.engine->wait();
    EXPECT_EQ(rank.engine->last_result().step, 2);
  });
}

TEST_P(AsynchronousStep, RefusesARankThatReducedOtherThings) {
  run(2, [](Trainer& rank) {
    rank.step();
    rank.backward();
    if (rank.world->rank() == 1) {
      rank.engine->zero_grad();
    }
    rank.engine->step();
    EXPECT_THAT(message_of([&] { rank.engine->wait(); }), HasSubstr("[step] "));
    rank.step();
    rank.engine->wait();
    EXPECT_EQ(rank.engine->last_result().step, 2);
  });
}

TEST_P(AsynchronousStep, RefusesARankThatAddedMoreLocally) {
  run(2, [](Trainer& rank) {
    rank.step();
    if (rank.world->rank() == 1) rank.add_locally();
    rank.step();
    EXPECT_THAT(message_of([&] { rank.engine->wait(); }),
                HasSubstr("[step] what was reduced and dropped (a hash of it) differs"));
    rank.step();
    rank.engine->wait();
    EXPECT_EQ(rank.engine->last_result().step, 2);
  });
}

TEST_P(AsynchronousStep, IfNoneARankThatAddedMoreLocallyIsRefusedUntilZeroGrad) {
  Options waiting;
  waiting.asynchronous_step = false;
  run(
      2,
      [](Trainer& rank) {
        rank.step();
        if (rank.world->rank() == 1) rank.add_locally();
        EXPECT_THAT(message_of([&] { rank.backward(); }),
                    HasSubstr("rank 1 and rank 0 differ in what they reduced or dropped"));
        for (int attempt = 0; attempt < 3; ++attempt) {
          EXPECT_THAT(message_of([&] { rank.engine->step(); }),
                      HasSubstr("zero_grad() on all ranks lets training go on"));
        }
        rank.engine->zero_grad();
        EXPECT_EQ(rank.step().step, 2);
      },
      waiting);
}

// A loop with the user's own optimizer and without step(), which would report the error.
TEST_P(AsynchronousStep, WritesThatNoStepAsksAboutEndTheEngineInTheSecondBackward) {
  run(3, [](Trainer& rank) {
    rank.step();
    if (rank.world->rank() == 1) rank.model->weight.unsafeGetTensorImpl()->bump_version();
    std::string error;
    for (int i = 0; i < 1000 && error.empty(); ++i) {
      try {
        rank.backward();
      } catch (const std::exception& thrown) {  // of the engine, or of an operator that gathers
        error = thrown.what();
      }
      if (rank.world->rank() == 1) {
        EXPECT_EQ(error.empty(), i == 0);
      }
    }
    EXPECT_THAT(error, HasSubstr("rank 1 found in the second backward without a step(): parameter "
                                 "'weight' was written outside engine->modify_parameters()"));
  });
}

TEST_P(AsynchronousStep, AWriteBetweenABackwardAndTheStepIsThatStepsError) {
  run(3, [](Trainer& rank) {
    rank.step();
    if (rank.world->rank() == 1) rank.model->weight.unsafeGetTensorImpl()->bump_version();
    rank.step();
    EXPECT_THAT(message_of([&] { rank.engine->wait(); }),
                HasSubstr("[step] rank 1: parameter 'weight' was written outside"));
    rank.engine->modify_parameters(0, [] {});
    rank.step();
    rank.engine->wait();
    EXPECT_EQ(rank.engine->last_result().step, 2);
  });
}

TEST_P(AsynchronousStep, SkipsAnOverflowAndShrinksTheLossScale) {
  Options options;
  options.loss_scale = LossScale{.initial = 1024.0};
  run(
      2,
      [](Trainer& rank) {
        rank.step();
        const at::Tensor before = rank.weight();
        rank.step(rank.world->rank() == 0 ? kNaN : 1.0);
        rank.engine->wait();
        EXPECT_FALSE(rank.engine->last_result().committed);
        EXPECT_EQ(rank.engine->last_result().step, 1);
        EXPECT_EQ(rank.engine->last_result().loss_scale, 1024.0);
        EXPECT_EQ(rank.engine->loss_scale(), 512.0);
        EXPECT_TRUE(rank.weight().equal(before));
        rank.step();
        rank.engine->wait();
        EXPECT_TRUE(rank.engine->last_result().committed);
        EXPECT_EQ(rank.engine->last_result().loss_scale, 512.0);
      },
      options);
}

TEST_P(AsynchronousStep, ReadsTheReportsOfAllRanksNowAndThen) {
  run(2, [](Trainer& rank) {
    constexpr int kSteps = 70;  // more than may stay unread
    for (int i = 0; i < kSteps; ++i) rank.step();
    rank.engine->wait();
    EXPECT_EQ(rank.engine->last_result().step, kSteps);
    rank.step(rank.world->rank() == 1 ? kNaN : 1.0);
    EXPECT_THAT(message_of([&] { rank.engine->wait(); }), HasSubstr("non-finite gradient"));
  });
}

TEST_P(AsynchronousStep, SavesAndLoadsBetween) {
  run(2, [](Trainer& rank) {
    rank.step();
    rank.step();
    const StateDict state = rank.engine->state_dict(StateScope::kEveryRank);
    const at::Tensor before = rank.weight();
    rank.step();
    rank.engine->load_state_dict(state);
    EXPECT_TRUE(rank.weight().equal(before));
    rank.step();
    rank.engine->wait();
    EXPECT_EQ(rank.engine->last_result().step, 3);
  });
}

std::string difference_name(
    const ::testing::TestParamInfo<std::pair<Strategy, const char*>>& info) {
  return std::string(to_string(info.param.first)) + "_" + info.param.second;
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, AsynchronousStep,
    ::testing::Values(std::pair(Strategy::kDdp, "staged"), std::pair(Strategy::kDdp, "nccl"),
                      std::pair(Strategy::kZero1, "nccl"), std::pair(Strategy::kZero2, "staged"),
                      std::pair(Strategy::kZero3, "nccl"), std::pair(Strategy::kZero3, "staged")),
    difference_name);

/// Returns how often the host waits for the device in a forward, a backward and a step.
int64_t waits_in_step(Options options, int size) {
  int64_t waits = 0;
  const Decorate on_gpus = size == 1 ? alone() : over_nccl();
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> given) {
    Trainer rank(on_gpus(std::move(given)), options);
    for (int i = 0; i < 3; ++i) rank.step();
    rank.world->barrier();
    const int64_t before = fake_gpu()->host_syncs(rank.world->rank());
    rank.step();
    if (rank.world->rank() == 0) waits = fake_gpu()->host_syncs(rank.world->rank()) - before;
    rank.engine->wait();
  });
  return waits;
}

TEST(PretendAsynchronousStep, WaitsForTheDeviceOnceForTheStepBefore) {
  for (const Strategy strategy :
       {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
    for (const int size : {1, 3}) {
      Options options;
      options.strategy = strategy;
      options.max_grad_norm = 0.1;
      options.loss_scale = LossScale{};
      EXPECT_LE(waits_in_step(options, size), 1) << to_string(strategy) << " at " << size;
      options.asynchronous_step = false;
      EXPECT_GT(waits_in_step(options, size), 1) << "the count sees nothing";
    }
  }
}

TEST(AsynchronousStepOptions, AreRefusedByName) {
  if (most_rank_threads() < 1) GTEST_SKIP() << "needs a GPU";
  const auto refusal = [](const Decorate& decorate, Options options) {
    std::string text = "nothing";
    run_ranks(1, [&](std::shared_ptr<ProcessGroup> world) {
      try {
        Trainer(decorate ? decorate(std::move(world)) : std::move(world), options);
      } catch (const c10::Error& error) {
        text = error.what_without_backtrace();
      }
    });
    return text;
  };
  Options late;
  late.asynchronous_step = true;
  EXPECT_THAT(refusal(nullptr, late),
              HasSubstr("[options] asynchronous_step: is set, but parameters lie on the CPU"));
  EXPECT_EQ(refusal(alone(), late), "nothing");
  late.ask_non_finite = [](const NonFiniteReport&) { return NonFinite::kSkip; };
  EXPECT_THAT(refusal(alone(), late), HasSubstr("asynchronous_step: is set beside ask_non_finite"));
  Options early;
  early.strategy = Strategy::kZero2;
  early.optimizer_in_backward = true;
  EXPECT_THAT(refusal(alone(), early),
              HasSubstr("[options] optimizer_in_backward: is set, but works on a CPU only"));
  Options graphs;
  graphs.cuda_graphs = true;
  EXPECT_THAT(refusal(nullptr, graphs),
              HasSubstr("[options] cuda_graphs: is set, but parameters lie on the CPU"));
}

}  // namespace
}  // namespace tessera::internal::testing
