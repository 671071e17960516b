#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/given_gradients.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

// Ranks and micro-steps with batches of different sizes train, with weights, like one process on
// all samples in one batch.

namespace tessera::internal::testing {
namespace {

constexpr int kWeightedSteps = 3;

/// The samples of a rank in a micro-step: 0 to 4; in each step some rank has samples.
int64_t rows_of(int step, int micro, int rank) {
  return (2 * step + 3 * micro + rank * rank + 2) % 5;
}

Batch uneven_batch(const Subject& subject, at::ScalarType dtype, int step, int micro, int rank) {
  const int seed = 500 + step * 1000 + micro * 100 + rank;
  const int64_t rows = std::max<int64_t>(rows_of(step, micro, rank), 1);
  return draw_batch(subject, dtype, rows, static_cast<uint64_t>(seed));
}

struct Weighing {
  int micro_steps = 2;
  Schedule::Sync sync = Schedule::Sync::kEach;
  at::ScalarType dtype = at::kFloat;
  double unit = 1.0;  ///< weights are multiples of it
  bool accumulates = false;
  std::function<void(Options&)> adjust = {};
  std::function<double(int step, int micro, int rank)> weight = {};  ///< unset: the rows
};

/// Trains one rank; without samples its loss is NaN.
Outcome train_weighted(const Subject& subject, const Configuration& configuration,
                       const Weighing& weighing, const std::shared_ptr<ProcessGroup>& world) {
  const int rank = world->rank();
  const std::shared_ptr<Net> net =
      prepare(subject.make(), weighing.dtype, kModelSeed + static_cast<uint64_t>(rank));
  Options options = options_of(configuration);
  set_buckets(options, configuration, 1024);
  options.max_grad_norm = 0.05;
  if (weighing.adjust) weighing.adjust(options);
  const std::unique_ptr<Engine> engine = parallelize(net, make_plan(*net), options, world);
  const at::ScalarType computed = configuration.precision.parameters.value_or(weighing.dtype);

  Outcome outcome;
  for (int step = 0; step < kWeightedSteps; ++step) {
    double weights = 0.0;
    for (int micro = 0; micro < weighing.micro_steps; ++micro) {
      std::optional<Engine::NoSync> no_sync;
      if (weighing.sync == Schedule::Sync::kLast && micro + 1 < weighing.micro_steps) {
        no_sync.emplace(engine->no_sync());
      }
      const Batch batch = uneven_batch(subject, computed, step, micro, rank);
      const at::Tensor output = net->forward(batch.input, {step, rank});
      at::Tensor loss = at::mse_loss(output, batch.target);
      const auto rows = static_cast<double>(rows_of(step, micro, rank));
      const double weight =
          weighing.unit * (weighing.weight ? weighing.weight(step, micro, rank) : rows);
      if (weight == 0.0) loss = loss * std::numeric_limits<double>::quiet_NaN();
      if (weighing.accumulates) {
        engine->accumulate(gradients_of(*engine, engine->scale(loss)), weight);
      } else {
        engine->backward(loss, {.weight = weight});
      }
      for (int other = 0; other < world->size(); ++other) {
        weights += weighing.unit * static_cast<double>(rows_of(step, micro, other));
      }
    }
    const StepResult result = engine->step();
    EXPECT_TRUE(result.committed);
    if (!weighing.weight) {
      EXPECT_EQ(result.weight, weights);
    }
    outcome.grad_norms.push_back(result.grad_norm);
  }
  outcome.parameters = copy_parameters(*net);
  return outcome;
}

Outcome train_weighted(const std::string& model, const Configuration& configuration, int size,
                       const Weighing& weighing = {}) {
  std::vector<Outcome> by_rank(static_cast<size_t>(size));
  run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
    by_rank[static_cast<size_t>(world->rank())] =
        train_weighted(subject(model), configuration, weighing, world);
  });
  for (const Outcome& outcome : by_rank) {
    EXPECT_EQ(bit_differences(outcome, by_rank[0]), "") << "ranks differ";
  }
  return by_rank[0];
}

/// One process with all samples of a step in one batch.
Outcome concatenated(const Subject& subject, int size, int micro_steps, double max_grad_norm,
                     int64_t rows_left_out = 0) {
  const std::shared_ptr<Net> net = prepare(subject.make(), at::kDouble, kModelSeed);
  torch::optim::AdamW optimizer = plain_optimizer(*net, make_plan(*net));
  const std::vector<at::Tensor> parameters = distinct_parameters(*net);
  Outcome outcome;
  for (int step = 0; step < kWeightedSteps; ++step) {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> targets;
    for (int micro = 0; micro < micro_steps; ++micro) {
      for (int rank = 0; rank < size; ++rank) {
        if (rows_of(step, micro, rank) == 0) continue;
        const Batch batch = uneven_batch(subject, at::kDouble, step, micro, rank);
        inputs.push_back(batch.input);
        targets.push_back(batch.target);
      }
    }
    const at::Tensor input = at::cat(inputs);
    const int64_t rows = input.size(0) - rows_left_out;
    optimizer.zero_grad();
    const at::Tensor output = net->forward(input.narrow(0, 0, rows), {step, 0});
    at::mse_loss(output, at::cat(targets).narrow(0, 0, rows)).backward();
    outcome.grad_norms.push_back(torch::nn::utils::clip_grad_norm_(parameters, max_grad_norm));
    optimizer.step();
  }
  outcome.parameters = copy_parameters(*net);
  return outcome;
}

const std::vector<std::string> kUnevenModels = {"OddMlp", "TiedMlp", "FrozenLayers",
                                                "UnusedEverywhere", "Embedding"};

class WeightedGradients : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};

TEST_P(WeightedGradients, AreThoseOfAllSamplesInOneBatch) {
  for (size_t i = 0; i < kUnevenModels.size(); ++i) {
    const Subject& model = subject(kUnevenModels[i]);
    const Outcome expected = concatenated(model, world(), 2, 0.05);
    size_t turn = i;
    for (const Configuration& configuration : spanning_configurations(world())) {
      if (turn++ % kUnevenModels.size() != 0 && configuration.keeps_bits()) continue;
      for (const bool scales : {false, true}) {
        const Weighing weighing{.dtype = at::kDouble, .adjust = [scales](Options& options) {
                                  if (scales) options.loss_scale = LossScale{.initial = 1000.0};
                                }};
        const Outcome got = train_weighted(model.name, configuration, world(), weighing);
        EXPECT_EQ(differences(got, expected, model.tolerance), "")
            << configuration << " " << model << (scales ? " scaled" : "");
      }
    }
  }
}

TEST_P(WeightedGradients, HaveTheBitsOfDdpUnderEveryConfiguration) {
  const std::vector<Weighing> weighings = {
      {},
      {.micro_steps = 3, .sync = Schedule::Sync::kLast},
      {.micro_steps = 1,
       .unit = 0.3,
       .adjust =
           [](Options& options) {
             options.grad_norm_type = 1.0;
             options.max_grad_value = 0.01;
             options.gradient_divide_factor = 1.3;
           }},
      {.accumulates = true, .adjust = [](Options& options) { options.loss_scale.emplace(); }}};
  for (size_t i = 0; i < weighings.size(); ++i) {
    const std::string& model = kUnevenModels[i % kUnevenModels.size()];
    const Outcome expected =
        train_weighted(model, configuration_of(Strategy::kDdp), world(), weighings[i]);
    for (const Configuration& configuration : spanning_configurations(world())) {
      if (!configuration.keeps_bits() || configuration.name == "ddp") continue;
      EXPECT_EQ(
          bit_differences(train_weighted(model, configuration, world(), weighings[i]), expected),
          "")
          << configuration << " " << model << " " << i;
    }
  }
}

TEST_P(WeightedGradients, WeightsOfOneInOneBackwardKeepTheBitsOfNone) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero3}) {
    for (const char* schedule : {"Once", "OnceClipped"}) {
      const auto train_here = [&](const TrainOptions& options) {
        return train_on_threads(subject("OddMlp"), at::kFloat, configuration_of(strategy),
                                schedule_called(schedule), world(), options);
      };
      const auto weigh = [](Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
        engine.backward(loss, {.weight = 1});
      };
      const auto call = [](Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
        engine.backward(loss);
      };
      const Outcome expected = train_here({});
      EXPECT_EQ(bit_differences(train_here({.backward = weigh}), expected), "");
      EXPECT_EQ(bit_differences(train_here({.backward = call}), expected), "");
    }
  }
}

/// The unit of the weights does not matter; a power of two keeps the bits.
TEST_P(WeightedGradients, AUnitOfWeightChangesNothing) {
  const Configuration zero2 = configuration_of(Strategy::kZero2);
  const Outcome expected = train_weighted("OddMlp", zero2, world());
  EXPECT_EQ(bit_differences(train_weighted("OddMlp", zero2, world(), {.unit = 4096.0}), expected),
            "");
  EXPECT_EQ(
      bit_differences(train_weighted("OddMlp", zero2, world(), {.accumulates = true}), expected),
      "");
  EXPECT_EQ(differences(train_weighted("OddMlp", zero2, world(), {.unit = 1e6}), expected, 1e-5),
            "");
}

TEST_P(WeightedGradients, OfManyTokensFitIntoFp16) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero3}) {
    for (const Schedule::Sync sync : {Schedule::Sync::kEach, Schedule::Sync::kLast}) {
      Configuration wire = configuration_of(strategy);
      wire.precision.communication = at::kHalf;
      const Outcome small = train_weighted("OddMlp", wire, world(), {.sync = sync});
      // A gradient times 2^24 is infinite in fp16.
      const Outcome large = train_weighted("OddMlp", wire, world(), {.sync = sync, .unit = 0x1p24});
      EXPECT_EQ(bit_differences(large, small), "") << wire;
      const Outcome exact = train_weighted("OddMlp", configuration_of(strategy), world());
      EXPECT_EQ(differences(large, exact, 2e-2), "") << wire;
      EXPECT_NE(bit_differences(large, exact), "") << wire;
    }
  }
}

TEST_P(WeightedGradients, AreNotRoundedToTheDtypeOfTheLoss) {
  // 257/258 is rounded to 1 in bf16.
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    Configuration configuration = configuration_of(strategy);
    configuration.precision.parameters = at::kBFloat16;
    const auto weight = [](double first) {
      return [first](int, int, int rank) { return rank == 0 ? first : 256.0; };
    };
    const auto train_here = [&](double first) {
      return train_weighted("OddMlp", configuration, world(),
                            {.adjust = [](Options& options) { options.max_grad_norm = 100.0; },
                             .weight = weight(first)});
    };
    if (world() == 1) continue;
    EXPECT_NE(train_here(257.0).grad_norms[0], train_here(256.0).grad_norms[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, WeightedGradients, ::testing::ValuesIn(spanning_worlds()));

/// The negative control: one sample less or another weight changes the result.
TEST(WeightedGradientsNegativeControl, OtherWeightsAreNoticed) {
  const Configuration zero3 = configuration_of(Strategy::kZero3);
  const auto wrong = [](double more) {
    return Weighing{.dtype = at::kDouble, .weight = [more](int step, int micro, int rank) {
                      const auto rows = static_cast<double>(rows_of(step, micro, rank));
                      return rank == 1 && rows > 0.0 ? rows + more : rows;
                    }};
  };
  const Outcome expected = concatenated(subject("OddMlp"), 3, 2, 0.05);
  EXPECT_EQ(differences(train_weighted("OddMlp", zero3, 3, wrong(0.0)), expected, 1e-12), "");
  EXPECT_NE(differences(train_weighted("OddMlp", zero3, 3, wrong(1e-6)), expected, 1e-12), "");
  EXPECT_NE(differences(concatenated(subject("OddMlp"), 3, 2, 0.05, 1), expected, 1e-12), "");
}

}  // namespace
}  // namespace tessera::internal::testing
