#include "tessera/elementwise.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/optim/algorithm/algorithm.h"
#include "tessera/tests/optim/torch_twin.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/own_optimizer.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/torch_elementwise.h"

// What elementwise() accepts and refuses, and how it updates slices.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace torch::optim;

/// "" or why parallelize refuses the plan.
std::string refusal(const OptimizerPlan& plan) {
  const auto assigned = plan.assign(
      ParameterTable(std::vector<NamedTensor>{{"weight", torch::zeros({2, 3}).requires_grad_()}}));
  return assigned.ok() ? "" : std::string(assigned.status().message());
}

/// Momentum for what its name says.
template <typename Derived>
struct Momentum {
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    if (!state.mean.defined()) state.mean = torch::zeros_like(parameter);
    state.mean.mul_(options.beta).add_(gradient);
    parameter.add_(Derived::step_of(state.mean), -options.lr);
  }
};

struct PlainMomentum : Momentum<PlainMomentum> {
  static constexpr const char* kName = "PlainMomentum";
  static at::Tensor step_of(const at::Tensor& momentum) { return momentum; }
};

/// As Muon with a fallback: matrices are orthogonalised (one Newton-Schulz step), vectors are not.
struct MatrixRule : Momentum<MatrixRule> {
  static constexpr const char* kName = "Muon";
  static at::Tensor step_of(const at::Tensor& momentum) {
    if (momentum.dim() < 2) return momentum;
    const at::Tensor unit = momentum / (momentum.norm() + 1e-7);
    return unit * 1.5 - unit.mm(unit.t()).mm(unit) * 0.5;
  }
};

/// Scaled by the largest element of each block.
struct BlockRule : Momentum<BlockRule> {
  static constexpr const char* kName = "Blocks";
  static at::Tensor step_of(const at::Tensor& momentum) {
    at::Tensor step = momentum.clone();
    for (const at::Tensor& block : step.view(-1).split(128)) block.div_(block.abs().max() + 1);
    return step;
  }
};

/// Clips by the norm of all gradients itself.
struct GlobalNorm : Momentum<GlobalNorm> {
  static constexpr const char* kName = "GlobalNorm";
  static void begin(const std::vector<at::Tensor>& parameters, const OwnOptions&) {
    at::Tensor sum = torch::zeros({}, at::kDouble);
    for (const at::Tensor& parameter : parameters) {
      sum += parameter.grad().to(at::kDouble).square().sum();
    }
    for (const at::Tensor& parameter : parameters) {
      parameter.grad().mul_(1 / (1 + std::sqrt(sum.item<double>())));
    }
  }
  static at::Tensor step_of(const at::Tensor& momentum) { return momentum; }
};

struct RandomRule : Momentum<RandomRule> {
  static constexpr const char* kName = "Noise";
  static at::Tensor step_of(const at::Tensor& momentum) { return momentum * torch::rand({}); }
};

/// Two states that change places.
struct Swaps {
  static constexpr const char* kName = "Swaps";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    if (!state.mean.defined()) state.mean = torch::zeros_like(parameter);
    if (!state.spread.defined()) state.spread = torch::zeros_like(parameter);
    std::swap(state.mean, state.spread);
    state.mean.mul_(options.beta).add_(gradient);
    parameter.add_(state.mean - state.spread * 0.5, -options.lr);
  }
};

struct NoUpdate : Momentum<NoUpdate> {
  static constexpr const char* kName = "NoUpdate";
  static at::Tensor step_of(const at::Tensor& momentum) { return momentum * 0; }
};

/// Counts in the options, which nobody saves.
struct CountsInOptions {
  static constexpr const char* kName = "CountsInOptions";
  static void begin(const std::vector<at::Tensor>&, OwnOptions& options) { options.beta *= 0.5; }
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState&,
                     const OwnOptions& options) {
    parameter.add_(gradient, -options.lr * options.beta);
  }
};

/// One row of means for each matrix, as Adafactor.
struct RowRule {
  static constexpr const char* kName = "Rows";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    state.mean = gradient.square().mean(-1);
    parameter.add_(gradient, -options.lr);
  }
};

struct OneValueRule {
  static constexpr const char* kName = "OneValue";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    state.mean = torch::full({1}, 2.0);
    parameter.add_(gradient, -options.lr);
  }
};

struct CountsTwice {
  static constexpr const char* kName = "CountsTwice";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    ++state.count;
    parameter.add_(gradient, -options.lr);
  }
};

struct FloatOnly : Momentum<FloatOnly> {
  static constexpr const char* kName = "FloatOnly";
  static at::Tensor step_of(const at::Tensor& momentum) {
    TORCH_CHECK(momentum.scalar_type() == at::kFloat, "expected Float");
    return momentum;
  }
};

struct ThrowingRule {
  static constexpr const char* kName = "Throwing";
  static void update(const at::Tensor&, const at::Tensor&, OwnState&, const OwnOptions&) {
    TORCH_CHECK(false, "needs a closure");
  }
};

template <typename Rule>
std::string refusal_of() {
  return refusal(elementwise<Own<Rule>>(OwnOptions()));
}

TEST(ElementwiseProbe, AcceptsWhatIsElementwise) {
  EXPECT_EQ(refusal_of<Belief>(), "");
  EXPECT_EQ(refusal_of<NarrowMomentum>(), "");
  EXPECT_EQ(refusal_of<PlainMomentum>(), "");
  EXPECT_EQ(refusal_of<FloatOnly>(), "");
  EXPECT_EQ(refusal_of<Swaps>(), "");
  EXPECT_EQ(refusal(elementwise<AdamW>(AdamWOptions(0.02))), "");
  EXPECT_EQ(refusal(elementwise<AdamW>(AdamWOptions(0.0).amsgrad(true))), "") << "of a warm-up";
  EXPECT_EQ(refusal(elementwise<Adam>(AdamOptions(0.02).weight_decay(0.1))), "");
  EXPECT_EQ(refusal(elementwise<SGD>(SGDOptions(0.02))), "");
  EXPECT_EQ(refusal(elementwise<SGD>(SGDOptions(0.02).momentum(0.9).nesterov(true))), "");
  EXPECT_EQ(refusal(elementwise<Adagrad>(AdagradOptions(0.1).initial_accumulator_value(0.5))), "");
  EXPECT_EQ(refusal(elementwise<RMSprop>(RMSpropOptions(0.02).momentum(0.5).centered(true))), "");
}

TEST(ElementwiseProbe, NamesWhatIsNot) {
  EXPECT_THAT(
      refusal_of<MatrixRule>(),
      AllOf(HasSubstr("[optim] defaults: Muon: got an update that depends on the shape of a "
                      "parameter ([16, 12] and the same values as [192] become different), "
                      "expected one that is elementwise"),
            HasSubstr("train its parameters with another algorithm, by a group")));
  EXPECT_THAT(refusal_of<BlockRule>(),
              HasSubstr("Blocks: got an update of an element that depends on others"));
  EXPECT_THAT(refusal_of<NormOfParameter>(),
              HasSubstr("NormOfParameter: got an update of an element that depends on others"));
  EXPECT_THAT(refusal_of<GlobalNorm>(),
              AllOf(HasSubstr("GlobalNorm: got an update that depends on other parameters"),
                    HasSubstr("Options::max_grad_norm")));
  EXPECT_THAT(refusal_of<RandomRule>(), HasSubstr("Noise: got a step that draws random numbers"));
  EXPECT_THAT(refusal_of<NoUpdate>(), HasSubstr("NoUpdate: got no change of any value"));
}

/// A state that no accessor names.
struct HiddenForm {
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    Belief::update(parameter, gradient, state, options);
  }
};

TEST(ElementwiseProbe, NamesStatesThatCannotMove) {
  EXPECT_THAT(refusal_of<CountsInOptions>(),
              HasSubstr("CountsInOptions: beta: got 0.45 after a step with 0.9, expected no "
                        "change; compute numbers that change from the count"));
  EXPECT_THAT(refusal_of<RowRule>(),
              HasSubstr("[optim] defaults: Rows: state 'mean': got sizes [16] for a parameter of "
                        "[16, 12], expected the parameter's"));
  EXPECT_THAT(refusal_of<OneValueRule>(),
              AllOf(HasSubstr("OneValue: state 'mean': got one value for a whole parameter"),
                    HasSubstr("name a count of updates as `step`")));
  EXPECT_THAT(refusal_of<CountsTwice>(),
              HasSubstr("CountsTwice: step: got 2 after 1 updates of a parameter, expected 1"));
  EXPECT_THAT(
      refusal_of<ThrowingRule>(),
      HasSubstr("Throwing: got an exception in a run of three steps, expected none: needs a "
                "closure"));
}

}  // namespace
}  // namespace tessera::internal::testing

namespace tessera {
template <>
struct ElementwiseTraits<internal::testing::Own<internal::testing::HiddenForm>> {
  using State = internal::testing::OwnState;
  static ElementwiseForm<internal::testing::OwnOptions, State> form() {
    return {.name = "Hidden", .states = {{"mean", &State::mean}}, .step = &State::count};
  }
};

/// LibTorch's, whose form is wrong.
struct MisnamedAdamW : torch::optim::AdamW {
  using AdamW::AdamW;
};
template <>
struct ElementwiseTraits<MisnamedAdamW> {
  using State = torch::optim::AdamWParamState;
  static ElementwiseForm<torch::optim::AdamWOptions, State> form() {
    return {.name = "Misnamed",
            .states = {{"step", [](State& of) -> at::Tensor& { return of.exp_avg(); }}}};
  }
};

/// Options without a rate.
struct NoRateOptions : torch::optim::OptimizerCloneableOptions<NoRateOptions> {};
class NoRate : public torch::optim::Optimizer {
 public:
  NoRate(std::vector<at::Tensor> parameters, const NoRateOptions& options)
      : Optimizer(std::move(parameters), std::make_unique<NoRateOptions>(options)) {}
  at::Tensor step(LossClosure = nullptr) override { return {}; }
};
template <>
struct ElementwiseTraits<NoRate> {
  static ElementwiseForm<NoRateOptions, internal::testing::OwnState> form() {
    return {.name = "NoRate"};
  }
};

/// A count in a tensor.
struct TensorCountState : torch::optim::OptimizerCloneableParamState<TensorCountState> {
  at::Tensor steps;
};
class TensorCount : public torch::optim::Optimizer {
 public:
  TensorCount(std::vector<at::Tensor> parameters, const torch::optim::SGDOptions& options)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(options)) {}
  at::Tensor step(LossClosure = nullptr) override {
    for (const at::Tensor& parameter : param_groups()[0].params()) {
      auto& state = this->state()[parameter.unsafeGetTensorImpl()];
      if (state == nullptr) state = std::make_unique<TensorCountState>();
      at::Tensor& steps = static_cast<TensorCountState&>(*state).steps;
      steps = steps.defined() ? steps + 1 : torch::ones({});
      parameter.data().add_(parameter.grad(),
                            -param_groups()[0].options().get_lr() / steps.item<double>());
    }
    return {};
  }
};
template <>
struct ElementwiseTraits<TensorCount> {
  static ElementwiseForm<torch::optim::SGDOptions, TensorCountState> form() {
    return {.name = "TensorCount", .step = &TensorCountState::steps};
  }
};
}  // namespace tessera

namespace tessera::internal::testing {
namespace {

TEST(ElementwiseProbe, ReadsTheForm) {
  EXPECT_THAT(refusal_of<HiddenForm>(),
              HasSubstr("Hidden: got an update that depends on something that its "));
  EXPECT_THAT(refusal(elementwise<MisnamedAdamW>(AdamWOptions())),
              HasSubstr("[optim] defaults: Misnamed: states: got 'step', expected a name in"));
  EXPECT_EQ(refusal(elementwise<TensorCount>(SGDOptions(0.1))), "");
  const OptimizerPlan without_rate = elementwise<NoRate>(NoRateOptions());
  EXPECT_THAT(message_of([&] { refusal(without_rate); }), HasSubstr("get_lr()"));
}

TEST(ElementwiseProbe, CanBeSkippedAndRunsForTheOptionsThatCount) {
  EXPECT_EQ(refusal(elementwise<Own<BlockRule>>(OwnOptions(), ElementwiseProbe::kSkip)), "");
  // States are asked for all the same.
  EXPECT_THAT(refusal(elementwise<Own<RowRule>>(OwnOptions(), ElementwiseProbe::kSkip)),
              HasSubstr("got sizes [16]"));
  // What LibTorch's constructor refuses.
  OptimizerPlan plan = elementwise<AdamW>(AdamWOptions(0.02));
  plan.defaults.as<AdamWOptions>().betas({1.5, 0.9});
  EXPECT_THAT(refusal(plan), HasSubstr("AdamW: got an exception in a run of three steps, expected "
                                       "none: Invalid beta parameter at index 0: 1.5"));
  plan.defaults.as<AdamWOptions>().betas({0.5, 0.9}).lr(-1);
  EXPECT_THAT(refusal(plan), HasSubstr("[optim] defaults: lr: got -1"));
  const OptimizerPlan grouped(AdamWOptions(0.1), {{"all", [](std::string_view) { return true; },
                                                   elementwise<Own<GlobalNorm>>(OwnOptions())}});
  EXPECT_THAT(refusal(grouped), HasSubstr("[optim] group 'all': GlobalNorm: got an update"));
}

TEST(ElementwiseProbe, LeavesTheGeneratorAlone) {
  torch::manual_seed(5);
  const at::Tensor expected = torch::rand({4});
  torch::manual_seed(5);
  EXPECT_NE(refusal_of<RandomRule>(), "");
  EXPECT_EQ(refusal_of<Belief>(), "");
  EXPECT_TRUE(have_same_bits(torch::rand({4}), expected));
}

TEST(Elementwise, SaysWhatRanksMustHaveInCommonAndWhichStatesThereAre) {
  const OptimizerPlan plan = elementwise<AdamW>(AdamWOptions(3e-4));
  EXPECT_EQ(plan.lines()[0],
            "optimizer defaults: AdamW lr 0.0003 beta1 0.9 beta2 0.999 eps 1e-08 weight_decay 0.01 "
            "(elementwise: exp_avg exp_avg_sq max_exp_avg_sq)");
  const Algorithm& adamw = plan.algorithm();
  EXPECT_FALSE(adamw.states[2].is_used_by(AdamWOptions()));
  EXPECT_TRUE(adamw.states[2].is_used_by(AdamWOptions().amsgrad(true)));
  const OptimizerPlan of_narrow = elementwise<Own<NarrowMomentum>>(OwnOptions());
  EXPECT_EQ(of_narrow.algorithm().states[0].state.dtype, at::kBFloat16);
  EXPECT_FALSE(of_narrow.algorithm().states[1].is_used_by(OwnOptions()));
}

/// Beside LibTorch's own loop over whole tensors, in any number of slices: the same bits.
template <typename Torch, typename Options>
void expect_the_same_bits(const Options& options) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const int slices : {1, 3}) {
      EXPECT_THAT(differing_plans<Torch>(elementwise<Torch>(options), options, dtype, slices, 5),
                  ::testing::IsEmpty())
          << dtype << " in " << slices;
    }
  }
}

TEST(Elementwise, UpdatesSlicesToTheBitsOfTorchsLoop) {
  expect_the_same_bits<AdamW>(AdamWOptions(0.02).weight_decay(0.1).amsgrad(true));
  expect_the_same_bits<Adam>(AdamOptions(0.02).weight_decay(0.1));
  expect_the_same_bits<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.5).weight_decay(0.1));
  expect_the_same_bits<Adagrad>(AdagradOptions(0.1).initial_accumulator_value(0.25));
  expect_the_same_bits<RMSprop>(RMSpropOptions(0.01).momentum(0.8).centered(true));
  expect_the_same_bits<Own<Belief>>(OwnOptions());
  expect_the_same_bits<Own<NarrowMomentum>>(OwnOptions());
  expect_the_same_bits<Own<Swaps>>(OwnOptions());
}

TEST(Elementwise, HasTheSameBitsWithAnyNumberOfThreads) {
  // Longer than what LibTorch gives one thread, and no multiple of anything.
  const auto trained = [](int threads, int slices) {
    at::set_num_threads(threads);
    std::vector<NamedTensor> long_one = {{"long", torch::linspace(-1, 1, 150001).requires_grad_()}};
    ShardedModel model(std::move(long_one), elementwise<AdamW>(AdamWOptions(0.02)), slices);
    for (int step = 0; step < 3; ++step) {
      model.update({torch::linspace(-3, 2 + step, 150001).sin()}, 0.3);
    }
    at::set_num_threads(1);
    return model.table()[0].tensor.detach().clone();
  };
  const int before = at::get_num_threads();
  const at::Tensor expected = trained(1, 1);
  EXPECT_TRUE(have_same_bits(trained(3, 1), expected));
  EXPECT_TRUE(have_same_bits(trained(3, 4), expected));
  at::set_num_threads(before);
}

TEST(ElementwiseNegativeControl, AWrongFormTrainsToOtherBits) {
  const auto plan = elementwise<Own<HiddenForm>>(OwnOptions(), ElementwiseProbe::kSkip);
  EXPECT_THAT(differing_plans<Own<Belief>>(plan, OwnOptions(), at::kFloat, 1, 3),
              ::testing::Contains("wide"));
}

}  // namespace
}  // namespace tessera::internal::testing
