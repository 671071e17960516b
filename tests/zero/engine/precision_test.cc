#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/tests/support/training.h"

// Scenario 53 of docs/testing.md: the dtype of each part of a step, and that what is computed in
// fp32 is exactly that.

namespace tessera::internal::testing {
namespace {

using at::Tensor;

/// Has a buffer, which keeps its dtype.
struct WithBuffer : torch::nn::Module {
  Tensor forward(const Tensor& input) {
    return second(at::tanh(first(input))) + offset.to(input.scalar_type());
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(7, 13));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(13, 5));
  Tensor offset = register_buffer("offset", torch::full({5}, 0.1));
};

torch::optim::AdamWOptions decaying_adamw() {
  return torch::optim::AdamWOptions(0.02).eps(1e-6).weight_decay(0.1);
}

Tensor loss_at(WithBuffer& model, at::ScalarType dtype, int rank, int step) {
  const Tensor input = at::sin(at::arange(28, at::kFloat) * (1.0 + step) + rank).view({4, 7});
  return model.forward(input.to(dtype)).to(at::kFloat).square().mean();
}

/// Plain LibTorch: each rank's 16-bit gradients, their mean formed in fp32 and rounded once to the
/// communication dtype, and an optimizer on fp32 copies.
struct Mimic {
  Mimic(at::ScalarType dtype, int world) : dtype(dtype), world(world) {
    draw_parameters(model, 5);
    for (const Tensor& parameter : model.parameters()) {
      masters.push_back(parameter.detach().clone().requires_grad_());
    }
    optimizer = std::make_unique<torch::optim::AdamW>(masters, decaying_adamw());
  }

  void step(int number) {
    std::vector<Tensor> sums;
    for (int rank = 0; rank < world; ++rank) {
      WithBuffer narrow;
      {
        const at::NoGradGuard no_grad;
        size_t i = 0;
        for (Tensor& parameter : narrow.parameters()) {
          parameter.set_data(masters[i++].detach().to(dtype));
        }
      }
      loss_at(narrow, dtype, rank, number).backward();
      size_t i = 0;
      for (const Tensor& parameter : narrow.parameters()) {
        const Tensor gradient = parameter.grad().to(at::kFloat);
        if (rank == 0) {
          sums.push_back(gradient);
        } else {
          sums[i] = sums[i] + gradient;
        }
        ++i;
      }
    }
    for (size_t i = 0; i < masters.size(); ++i) {
      masters[i].mutable_grad() = (sums[i] / world).to(dtype).to(at::kFloat);
    }
    optimizer->step();
  }

  at::ScalarType dtype;
  int world;
  WithBuffer model;
  std::vector<Tensor> masters;
  std::unique_ptr<torch::optim::AdamW> optimizer;
};

class PrecisionTest : public ::testing::TestWithParam<Configuration> {};

TEST_P(PrecisionTest, Scenario53_SixteenBitStepsAreThoseOfAPlainMimic) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    constexpr int kWorld = 2;  // a mean over two is exact in fp32
    constexpr int kSteps = 3;
    Mimic mimic(dtype, kWorld);
    for (int step = 0; step < kSteps; ++step) mimic.step(step);

    run_ranks(kWorld, [&](std::shared_ptr<ProcessGroup> group) {
      const auto recording = std::make_shared<Recording>();
      const auto world = std::make_shared<RecordingGroup>(group, recording);
      const auto model = std::make_shared<WithBuffer>();
      draw_parameters(*model, 5);
      Configuration configuration = GetParam();
      configuration.precision.parameters = dtype;
      const auto engine = parallelize(model, decaying_adamw(), options_of(configuration), world);
      recording->clear();
      for (int step = 0; step < kSteps; ++step) {
        for (const Tensor& parameter : model->parameters()) {
          EXPECT_EQ(parameter.scalar_type(), dtype);
        }
        EXPECT_EQ(model->offset.scalar_type(), at::kFloat);
        EXPECT_EQ(model->forward(at::ones({1, 7}, dtype)).scalar_type(), dtype);
        loss_at(*model, dtype, world->rank(), step).backward();
        engine->step();
      }
      // Gradients were communicated in 16 bits.
      for (const RecordedCall& call : recording->calls()) {
        if (call.op != "reduce_scatter" && call.op != "all_reduce") continue;
        for (const PlannedUnit& unit : engine->units()) {
          if (unit.name != call.tag) continue;
          EXPECT_EQ(call.tensor_bytes, 2 * unit.layout.numel());
        }
      }
      const StateDict state = engine->state_dict(StateScope::kEveryRank);
      size_t i = 0;
      for (const auto& entry : mimic.model.named_parameters()) {
        const Tensor got = state.entries.at("optimizer." + entry.key() + ".master").tensor();
        EXPECT_EQ(got.scalar_type(), at::kFloat);
        EXPECT_TRUE(at::allclose(got, mimic.masters[i], 1e-6, 1e-7))
            << configuration << " " << entry.key();
        EXPECT_TRUE(at::allclose(model->named_parameters()[entry.key()].to(at::kFloat),
                                 mimic.masters[i], 1e-2, 1e-3));
        ++i;
      }
    });
  }
}

struct WithBatchNorm : torch::nn::Module {
  Tensor forward(const Tensor& input) {
    return last(at::tanh(norm(first(input).unsqueeze(2).unsqueeze(3)).flatten(1)));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(7, 6));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(6));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(6, 5));
};

/// Trains the model in bfloat16; returns all state that is equal on all ranks.
std::vector<Tensor> train_batch_norm(const Configuration& configuration,
                                     const std::shared_ptr<ProcessGroup>& world) {
  const auto model = std::make_shared<WithBatchNorm>();
  draw_parameters(*model, 5);
  const auto engine = parallelize(model, decaying_adamw(), options_of(configuration), world);
  for (int step = 0; step < 3; ++step) {
    const Tensor input = at::sin(at::arange(28, at::kFloat) * (1.0 + step) + world->rank());
    model->forward(input.view({4, 7}).to(at::kBFloat16)).to(at::kFloat).square().mean().backward();
    engine->step();
  }
  EXPECT_EQ(model->norm->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(model->first->weight.scalar_type(), at::kBFloat16);
  const StateDict state = engine->state_dict(StateScope::kEveryRank);
  EXPECT_FALSE(state.entries.contains("optimizer.norm.weight.master")) << "it is its own master";
  EXPECT_TRUE(state.entries.contains("optimizer.first.weight.master"));
  std::vector<Tensor> values;
  for (const auto& [name, entry] : state.entries) values.push_back(entry.tensor());
  return values;
}

TEST_P(PrecisionTest, BatchNormStaysInFp32) {
  for (const int size : {2, 3}) {
    if (size == 3 && GetParam().strategy == Strategy::kHybrid) continue;  // its degrees are 2
    run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
      Configuration configuration = GetParam();
      Configuration ddp = configuration_of(Strategy::kDdp);
      configuration.precision.parameters = ddp.precision.parameters = at::kBFloat16;
      const std::vector<Tensor> got = train_batch_norm(configuration, world);
      const std::vector<Tensor> expected = train_batch_norm(ddp, world);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(have_same_bits(got[i], expected[i])) << i;
    });
  }
}

TEST(Precision, BatchNormIsNotMadeWiderThanItsStatistics) {
  Options options;
  options.precision.parameters = at::kDouble;
  const auto errors = run_ranks_expecting_errors(2, [&](std::shared_ptr<ProcessGroup> world) {
    parallelize(std::make_shared<WithBatchNorm>(), decaying_adamw(), options, world);
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::HasSubstr(
                          "parameter 'norm.weight': precision.parameters: got Double, wider than "
                          "the statistics of its BatchNorm, which stay Float; convert the whole "
                          "model before parallelize")));
}

/// Negative control: without the option LibTorch refuses the model.
TEST(Precision, NegativeControlLibTorchRefusesNarrowBatchNorms) {
  WithBatchNorm model;
  model.to(at::kBFloat16);
  model.norm->running_mean = model.norm->running_mean.to(at::kFloat);
  model.norm->running_var = model.norm->running_var.to(at::kFloat);
  EXPECT_THROW(model.forward(at::ones({4, 7}, at::kBFloat16)), c10::Error);
}

/// Sums of micro-steps are wider than the gradients.
TEST_P(PrecisionTest, Scenario53_MicroStepsAreAddedInFp32) {
  Configuration configuration = GetParam();
  configuration.precision.parameters = at::kBFloat16;
  const Schedule schedule{.name = "", .steps = 2, .micro_steps = 3};
  const auto norms = [&](std::optional<at::ScalarType> reduce) {
    configuration.precision.reduce = reduce;
    return train_on_threads(subject("OddMlp"), at::kFloat, configuration, schedule, 2).grad_norms;
  };
  EXPECT_EQ(norms(std::nullopt), norms(at::kFloat));
  // The negative control.
  EXPECT_NE(norms(at::kFloat), norms(at::kBFloat16));
}

/// Communication dtypes wider or narrower than the parameters'.
TEST_P(PrecisionTest, Scenario53_EveryCommunicationDtypeGivesTheBitsOfDdp) {
  const std::vector<Precision> precisions = {
      {.communication = at::kBFloat16},
      {.communication = at::kDouble, .reduce = at::kDouble},
      {.parameters = at::kBFloat16, .communication = at::kFloat},
      {.parameters = at::kHalf, .communication = at::kHalf, .reduce = at::kHalf},
      {.parameters = at::kBFloat16, .master = at::kDouble},
  };
  for (const Precision& precision : precisions) {
    for (const size_t index : {size_t{0}, size_t{2}, size_t{3}}) {
      Configuration configuration = GetParam();
      Configuration ddp = configuration_of(Strategy::kDdp);
      configuration.precision = precision;
      ddp.precision = precision;
      const auto run = [&](const Configuration& which) {
        return train_on_threads(subject("Blocks"), at::kFloat, which, schedules()[index], 2);
      };
      EXPECT_EQ(bit_differences(run(configuration), run(ddp)), "")
          << configuration << " " << to_string(precision);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, PrecisionTest,
                         ::testing::Values(configuration_of(Strategy::kDdp),
                                           configuration_of(Strategy::kZero1),
                                           configuration_of(Strategy::kZero2),
                                           configuration_of(Strategy::kZero3), hybrid(2, 2, 2)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::internal::testing
