// Adam, Adagrad and RMSprop compared with LibTorch's; Lion compared with its formula.
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/lion_options.h"
#include "tessera/optim/algorithms/algorithms.h"
#include "tessera/tests/optim/torch_twin.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::RMSpropOptions;

constexpr Ulps kUlps = 2;

template <typename Torch, typename Options>
void expect_near(const std::vector<Options>& variants, Ulps ulps = kUlps) {
  for (size_t i = 0; i < variants.size(); ++i) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      for (const int slices : {1, 2, 3, 5}) {
        EXPECT_THAT((differing<Torch, Options>(variants[i], variants[i], dtype, slices, 12, ulps)),
                    IsEmpty())
            << "variant " << i << " " << dtype << " " << slices;
      }
    }
  }
}

TEST(Adam, IsTorchsAdamHoweverItIsCut) {
  expect_near<torch::optim::Adam, AdamOptions>(
      {AdamOptions(0.01), AdamOptions(0.01).weight_decay(0.1), AdamOptions(0.01).amsgrad(true),
       AdamOptions(0.02).betas({0.5, 0.7}).eps(1e-3).weight_decay(0.3).amsgrad(true)});
}

TEST(Adagrad, IsTorchsAdagradHoweverItIsCut) {
  expect_near<torch::optim::Adagrad, AdagradOptions>(
      {AdagradOptions(0.1), AdagradOptions(0.1).lr_decay(0.2),
       AdagradOptions(0.1).weight_decay(0.1),
       AdagradOptions(0.1).initial_accumulator_value(0.5).lr_decay(0.1).weight_decay(0.2).eps(
           1e-4)});
}

TEST(Rmsprop, IsTorchsRmspropHoweverItIsCut) {
  expect_near<torch::optim::RMSprop, RMSpropOptions>({RMSpropOptions(0.01),
                                                      RMSpropOptions(0.01).weight_decay(0.1),
                                                      RMSpropOptions(0.01).centered(true)});
  // Momentum carries the errors of earlier steps along, a tenth less each step.
  const RMSpropOptions all =
      RMSpropOptions(0.02).alpha(0.7).eps(1e-3).momentum(0.9).weight_decay(0.2).centered(true);
  expect_near<torch::optim::RMSprop, RMSpropOptions>({RMSpropOptions(0.01).momentum(0.9), all},
                                                     10 * kUlps);
}

TEST(TorchOptimizers, NegativeControlsOfTheComparison) {
  const AdamOptions adam = AdamOptions(0.01).weight_decay(0.1);
  const auto adam_differs = [&](const AdamOptions& other) {
    return !differing<torch::optim::Adam, AdamOptions>(adam, other, at::kFloat, 2, 12, kUlps)
                .empty();
  };
  EXPECT_FALSE(adam_differs(adam));
  EXPECT_TRUE(adam_differs(AdamOptions(adam).lr(0.010001)));
  EXPECT_TRUE(adam_differs(AdamOptions(adam).betas({0.90001, 0.999})));
  EXPECT_TRUE(adam_differs(AdamOptions(adam).betas({0.9, 0.99901})));
  EXPECT_TRUE(adam_differs(AdamOptions(adam).eps(1e-5)));
  EXPECT_TRUE(adam_differs(AdamOptions(adam).weight_decay(0.10001)));
  EXPECT_TRUE(adam_differs(AdamOptions(adam).amsgrad(true)));
  const AdagradOptions adagrad(0.1);
  const auto adagrad_differs = [&](const AdagradOptions& other) {
    return !differing<torch::optim::Adagrad, AdagradOptions>(adagrad, other, at::kFloat, 2, 12,
                                                             kUlps)
                .empty();
  };
  EXPECT_TRUE(adagrad_differs(AdagradOptions(0.1).lr_decay(0.001)));
  EXPECT_TRUE(adagrad_differs(AdagradOptions(0.1).initial_accumulator_value(0.01)));
  const RMSpropOptions rmsprop(0.01);
  const auto rmsprop_differs = [&](const RMSpropOptions& other) {
    return !differing<torch::optim::RMSprop, RMSpropOptions>(rmsprop, other, at::kFloat, 2, 12,
                                                             kUlps)
                .empty();
  };
  EXPECT_TRUE(rmsprop_differs(RMSpropOptions(0.01).alpha(0.98)));
  EXPECT_TRUE(rmsprop_differs(RMSpropOptions(0.01).centered(true)));
  EXPECT_TRUE(rmsprop_differs(RMSpropOptions(0.01).momentum(0.01)));
}

/// Lion's formula, operation by operation, each rounded.
class PlainLion {
 public:
  PlainLion(std::vector<at::Tensor> parameters, const LionOptions& options)
      : parameters_(std::move(parameters)), options_(options) {
    for (const at::Tensor& parameter : parameters_) {
      momenta_.push_back(torch::zeros_like(parameter));
    }
  }
  void step() {
    const torch::NoGradGuard no_grad;
    const auto [beta1, beta2] = options_.betas();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& gradient = parameters_[i].grad();
      if (!gradient.defined()) continue;
      const at::Tensor direction = torch::sign(momenta_[i] * beta1 + gradient * (1 - beta1));
      momenta_[i] = momenta_[i] * beta2 + gradient * (1 - beta2);
      const double decay = 1 - options_.lr() * options_.weight_decay();
      parameters_[i].copy_(parameters_[i] * decay - direction * options_.lr());
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> momenta_;
  LionOptions options_;
};

TEST(Lion, HasTheBitsOfItsFormulaHoweverItIsCut) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const int slices : {1, 3}) {
      const LionOptions options = LionOptions(1e-2).weight_decay(0.3).betas({0.8, 0.95});
      const std::vector<NamedTensor> reference = twin_parameters(dtype);
      std::vector<at::Tensor> trained;
      for (const NamedTensor& parameter : reference) {
        if (parameter.tensor.requires_grad()) trained.push_back(parameter.tensor);
      }
      PlainLion plain(trained, options);
      ShardedModel model(twin_parameters(dtype), options, slices);
      for (int step = 0; step < 12; ++step) {
        const std::vector<at::Tensor> gradients = twin_gradients(reference, step);
        for (size_t i = 0; i < reference.size(); ++i) {
          reference[i].tensor.mutable_grad() =
              gradients[i].defined() ? gradients[i].clone() : at::Tensor();
        }
        plain.step();
        model.update(gradients);
      }
      for (size_t i = 0; i < reference.size(); ++i) {
        EXPECT_TRUE(testing::have_same_bits(model.table()[i].tensor, reference[i].tensor))
            << reference[i].name << " " << dtype << " " << slices;
      }
    }
  }
}

/// The names of a plan's states.
std::vector<std::string> states_of(const OptimizerPlan& plan) {
  ShardedModel model(twin_parameters(at::kFloat), plan, 1);
  std::vector<std::string> names;
  for (const ElementState& state : model.optimizer(0).states()) names.push_back(state.name);
  if (plan.groups.empty()) {
    EXPECT_EQ(model.optimizer(0).state_bytes(),
              static_cast<int64_t>(names.size()) * model.flat().numel() * 4);
  }
  return names;
}

TEST(States, AreThoseThatTheOptionsUse) {
  EXPECT_THAT(states_of(AdamOptions(0.1)), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(states_of(AdamOptions(0.1).amsgrad(true)),
              ElementsAre("exp_avg", "exp_avg_sq", "max_exp_avg_sq"));
  EXPECT_THAT(states_of(torch::optim::SGDOptions(0.1)), IsEmpty());
  EXPECT_THAT(states_of(torch::optim::SGDOptions(0.1).momentum(0.9)),
              ElementsAre("momentum_buffer"));
  EXPECT_THAT(states_of(LionOptions()), ElementsAre("exp_avg"));
  EXPECT_THAT(states_of(AdagradOptions(0.1)), ElementsAre("sum"));
  EXPECT_THAT(states_of(RMSpropOptions(0.1)), ElementsAre("square_avg"));
  EXPECT_THAT(states_of(RMSpropOptions(0.1).centered(true)), ElementsAre("square_avg", "grad_avg"));
  EXPECT_THAT(states_of({RMSpropOptions(0.1),
                         {{"wide", [](std::string_view name) { return name == "wide"; },
                           RMSpropOptions(0.1).momentum(0.5)}}}),
              ElementsAre("square_avg", "momentum_buffer"));
}

TEST(States, OfSeveralAlgorithmsAreKeptForTheirOwnParameters) {
  const auto is = [](std::string_view wanted) {
    return [wanted](std::string_view name) { return name == wanted; };
  };
  const OptimizerPlan plan(AdamOptions(0.1),
                           {{"wide", is("wide"), LionOptions(0.1)},
                            {"line", is("line"), torch::optim::SGDOptions(0.1).momentum(0.9)},
                            {"conv", is("conv"), torch::optim::SGDOptions(0.1)}});
  for (const int slices : {1, 2, 3, 5}) {
    SCOPED_TRACE(slices);
    ShardedModel model(twin_parameters(at::kFloat), plan, slices);
    EXPECT_THAT(states_of(plan), ElementsAre("exp_avg", "exp_avg_sq", "momentum_buffer"));
    // turned 91, scalar 1 (Adam): 128 + 64; line 65: 128; wide 1073: 1088; empty: nothing.
    int64_t bytes = 0;
    for (int slice = 0; slice < slices; ++slice) bytes += model.optimizer(slice).state_bytes();
    const int64_t end = 192 + 128 + 128 + 64 + 1088;  // the rest of the buffer is padding of wide
    EXPECT_EQ(bytes, 4 * ((128 + 64) * 2 + 1088 + 128 + (model.flat().numel() - end)));
  }
}

TEST(States, ThatAreNotKeptCannotBeUsedLater) {
  ShardedModel model(twin_parameters(at::kFloat), AdamOptions(0.1), 1);
  CpuOptimizer& optimizer = model.optimizer(0);
  static_cast<AdamOptions&>(optimizer.param_groups()[0].options()).amsgrad(true);
  const std::vector<at::Tensor> gradients = twin_gradients(twin_parameters(at::kFloat), 0);
  EXPECT_THAT(message_of([&] { model.update(gradients); }),
              AllOf(HasSubstr("[optim] defaults: got options that need the state 'max_exp_avg_sq'"),
                    HasSubstr("give them to parallelize")));
}

TEST(AdamW, UnderAmsgradDividesByTheLargestMomentSoFar) {
  using torch::optim::AdamWOptions;
  const AdamWOptions options = AdamWOptions(0.01).weight_decay(0.1).amsgrad(true);
  for (const int slices : {1, 3}) {
    ShardedModel model(twin_parameters(at::kDouble), options, slices);
    const std::vector<NamedTensor> reference = twin_parameters(at::kDouble);
    std::vector<at::Tensor> trained;
    for (const NamedTensor& parameter : reference) {
      if (parameter.tensor.requires_grad()) trained.push_back(parameter.tensor);
    }
    torch::optim::AdamW optimizer(trained, options);
    for (int step = 0; step < 12; ++step) {
      std::vector<at::Tensor> gradients = twin_gradients(reference, step);
      for (size_t i = 0; i < reference.size(); ++i) {
        if (gradients[i].defined()) gradients[i] = gradients[i] / (1 + step);  // moments shrink
        reference[i].tensor.mutable_grad() =
            gradients[i].defined() ? gradients[i].clone() : at::Tensor();
      }
      optimizer.step();
      model.update(gradients);
    }
    for (size_t i = 0; i < reference.size(); ++i) {
      EXPECT_TRUE(torch::allclose(model.table()[i].tensor, reference[i].tensor, 1e-13, 1e-15))
          << reference[i].name;
    }
  }
}

}  // namespace
}  // namespace tessera::internal
