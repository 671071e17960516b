#include "tessera/tests/equivalence/any_world_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/eight_bit_options.h"
#include "tessera/lamb_options.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/given_gradients.h"
#include "tessera/tests/support/muon_plan.h"

// Reproducible::kAnyWorldSize: 8 micro-batches on 1, 2, 4 or 8 ranks give the same bits under every
// strategy.

namespace tessera::internal::testing {
namespace {

Subject dropping() {
  return {.name = "Dropping",
          .make = [] { return std::make_shared<Dropping>(); },
          .input_shape = {7},
          .target_shape = {5}};
}

void expect_persistent_formula(Engine& engine) {
  const int micro_steps = kMicroBatches / engine.group().size();
  const MemoryBytes now = engine.memory().now();
  const MemoryBytes predicted = predicted_memory(engine, micro_steps);
  for (const MemoryClass memory_class :
       {MemoryClass::kParameters, MemoryClass::kGradients, MemoryClass::kOptimizer,
        MemoryClass::kUnshardedParameters, MemoryClass::kRoot}) {
    EXPECT_EQ(now[memory_class], predicted[memory_class]) << to_string(memory_class);
  }
}

/// Compares every number of ranks under every row with ddp on one rank.
void expect_one_outcome(const AnySizeRun& run, const std::vector<int>& sizes = {1, 2, 4, 8}) {
  const Outcome expected = outcome_of(run, configuration_of(Strategy::kDdp), 1);
  for (const int size : sizes) {
    size_t turn = sizes.size() + static_cast<size_t>(size) / 2;
    for (const Configuration& configuration : rows_of(size)) {
      if (!has_turn(turn++, 2)) continue;
      SCOPED_TRACE(::testing::Message()
                   << configuration << " of " << run.subject << " on " << size);
      const Outcome got = outcome_of(run, configuration, size, &expect_persistent_formula);
      EXPECT_EQ(bit_differences(got.parameters, expected.parameters), "");
      EXPECT_EQ(bit_differences(got.grad_norms, expected.grad_norms), "");
    }
  }
}

TEST(AnyWorldSize, GivesTheSameBitsUnderEveryRow) { expect_one_outcome({.subject = dropping()}); }

TEST(AnyWorldSize, WithBranchesThatSomeMicroBatchesTake) {
  expect_one_outcome({.subject = subject("Branches")});
}

TEST(AnyWorldSize, InFp64WithoutClipping) {
  expect_one_outcome({.subject = dropping(),
                      .dtype = at::kDouble,
                      .max_grad_norm = std::numeric_limits<double>::infinity()},
                     {2, 8});
}

TEST(AnyWorldSize, InBf16OverMastersWithGradientsInFp32) {
  expect_one_outcome({.subject = dropping(),
                      .precision = {.parameters = at::kBFloat16, .communication = at::kFloat}},
                     {2, 4, 8});
}

TEST(AnyWorldSize, OfOtherModels) {
  for (const char* model : {"OddMlp", "TiedBlocks", "SparseEmbedding", "Attention"}) {
    expect_one_outcome({.subject = subject(model)}, {4});
  }
}

TEST(AnyWorldSize, UnderOtherOptimizers) {
  const std::vector<std::function<OptimizerPlan(const torch::nn::Module&)>> plans = {
      [](const torch::nn::Module&) {
        return OptimizerPlan(torch::optim::SGDOptions(0.05).momentum(0.9));
      },
      [](const torch::nn::Module&) { return OptimizerPlan(LambOptions(0.02)); },
      [](const torch::nn::Module&) { return OptimizerPlan(AdamW8bitOptions(0.02)); },
      [](const torch::nn::Module&) {
        return muon_and(torch::optim::AdamWOptions(0.02), MuonOptions(0.02));
      }};
  for (const auto& plan : plans) {
    expect_one_outcome({.subject = subject("OddMlp"), .plan = plan}, {4});
  }
}

TEST(AnyWorldSize, WithGivenGradients) {
  expect_one_outcome(
      {.subject = subject("OddMlp"),
       .backward = [](Engine& engine, const torch::nn::Module&,
                      const at::Tensor& loss) { engine.accumulate(gradients_of(engine, loss)); }},
      {4});
}

/// A parameter's gradient is dropped in the middle of a step, while partial sums wait.
TEST(AnyWorldSize, WithGradientsThatTheUserClears) {
  const auto backward = [](Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
    loss.backward();
    const int64_t ended = (engine.micro_batch() - engine.group().rank()) % kMicroBatches;
    if (ended == 6) engine.parameters()[0].tensor.mutable_grad().reset();
  };
  const AnySizeRun run{.subject = subject("OddMlp"), .backward = backward};
  expect_one_outcome(run, {1, 2});
  const Configuration ddp = configuration_of(Strategy::kDdp);
  EXPECT_NE(bit_differences(outcome_of(run, ddp, 2), outcome_of({.subject = run.subject}, ddp, 2)),
            "")
      << "the control";
}

TEST(AnyWorldSize, WithDivisorsThatArePowersOfTwo) {
  // Losses are divided by a rank's micro-steps, so with a divisor other than N the result depends
  // on N. If the total divisor stays the same, the bits are those of the mean.
  const AnySizeRun mean{.subject = subject("OddMlp")};
  const Outcome expected = outcome_of(mean, configuration_of(Strategy::kDdp), 1);
  for (const int size : {2, 8}) {
    AnySizeRun run = mean;
    run.adjust = [](Options& options) { options.gradient_divide_factor = 0.25; };
    run.backward = [size](Engine&, const torch::nn::Module&, const at::Tensor& loss) {
      (loss * (0.25 / size)).backward();
    };
    EXPECT_EQ(bit_differences(outcome_of(run, configuration_of(Strategy::kZero2), size), expected),
              "");
  }
}

/// A step with one micro-batch per rank may update in backward.
TEST(AnyWorldSize, WithUpdatesInBackward) {
  AnySizeRun run{.subject = subject("OddMlp"),
                 .max_grad_norm = std::numeric_limits<double>::infinity()};
  const Outcome expected = outcome_of(run, configuration_of(Strategy::kDdp), 1);
  run.adjust = [](Options& options) { options.optimizer_in_backward = true; };
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3}) {
    const Outcome got = outcome_of(run, configuration_of(strategy), 8);
    EXPECT_EQ(bit_differences(got.parameters, expected.parameters), "") << to_string(strategy);
  }
}

/// The negative control: rank order gives other bits on another number of ranks.
TEST(AnyWorldSize, RankOrderDiffers) {
  const AnySizeRun run{.subject = dropping(), .reproducible = Reproducible::kOneWorldSize};
  const AnySizeRun tree{.subject = dropping()};
  const Configuration ddp = configuration_of(Strategy::kDdp);
  const Outcome one = outcome_of(run, ddp, 1);
  EXPECT_NE(bit_differences(outcome_of(run, ddp, 2), one), "");
  EXPECT_NE(bit_differences(outcome_of(run, ddp, 4), one), "");
  EXPECT_NE(bit_differences(outcome_of(tree, ddp, 8), outcome_of(run, ddp, 8)), "");
  EXPECT_EQ(bit_differences(outcome_of(run, ddp, 4),
                            outcome_of(run, configuration_of(Strategy::kZero3), 4)),
            "")
      << "of one number of ranks it has the same";
}

/// A run of 8 ranks continues with fewer ranks under another strategy.
TEST(AnyWorldSize, GoesOnAtAnotherWorldSizeWithTheSameBits) {
  const AnySizeRun run{.subject = dropping()};
  const Outcome expected = outcome_of(run, configuration_of(Strategy::kDdp), 1);
  StateDict saved;
  run_ranks(8, [&](const std::shared_ptr<ProcessGroup>& world) {
    const std::shared_ptr<Net> net = prepare(run.subject.make(), run.dtype, 42);
    const auto engine = engine_of(run, configuration_of(Strategy::kZero3), net, world);
    std::vector<double> norms;
    train_steps(run, *engine, *net, 0, 1, norms);
    StateDict state = engine->state_dict(StateScope::kOneRank);
    if (world->rank() == 0) saved = std::move(state);
  });
  EXPECT_EQ(saved.entries.at("engine.micro_batches").tensor().item<int64_t>(), kMicroBatches);
  for (const int size : {1, 2, 4}) {
    run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
      const std::shared_ptr<Net> net = prepare(run.subject.make(), run.dtype, 7);
      const auto engine = engine_of(run, configuration_of(Strategy::kZero1), net, world);
      engine->load_state_dict(saved);
      EXPECT_EQ(engine->micro_batch(), kMicroBatches + world->rank());
      std::vector<double> norms;
      train_steps(run, *engine, *net, 1, kAnySizeSteps, norms);
      engine->wait();
      EXPECT_EQ(bit_differences(copy_parameters(*net), expected.parameters), "") << size;
    });
  }
}

/// .grad is visible once it is the sum over all ranks.
TEST(AnyWorldSize, GradIsWholeAfterAPowerOfTwoOfBackwards) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    const AnySizeRun run{.subject = subject("OddMlp")};
    const std::shared_ptr<Net> net = prepare(run.subject.make(), run.dtype, 42);
    const auto engine = engine_of(run, configuration_of(Strategy::kDdp), net, world);
    const at::Tensor& parameter = engine->parameters()[0].tensor;
    for (int backward = 1; backward <= 4; ++backward) {
      const auto number = static_cast<uint64_t>(engine->micro_batch());
      const Batch batch = draw_batch(run.subject, run.dtype, 3, number);
      at::mse_loss(net->forward(batch.input, {}), batch.target).backward();
      ASSERT_TRUE(parameter.grad().defined());
      if (backward == 3) {
        EXPECT_THROW(parameter.grad().const_data_ptr(), c10::Error);
      } else {
        EXPECT_NO_THROW(parameter.grad().const_data_ptr()) << backward;
      }
    }
  });
}

}  // namespace
}  // namespace tessera::internal::testing
