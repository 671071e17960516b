#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/elementwise.h"

namespace tessera::internal::testing {

/// An example of a user's optimizer. Its rule for a parameter is `Rule::update(parameter, gradient,
/// state, options)`, called in no-grad mode. If `Rule::make(parameter, state)` exists, the
/// constructor calls it to make the state.
struct OwnOptions : torch::optim::OptimizerCloneableOptions<OwnOptions> {
  OwnOptions(double rate = 0.02) : lr(rate) {}
  double lr;
  double beta = 0.9;
  bool uses_maxima = false;
  int64_t period = 1;  // a hyper-parameter only if the rule has kHasPeriod
  double get_lr() const override { return lr; }
  void set_lr(double rate) override { lr = rate; }
};

struct OwnState : torch::optim::OptimizerCloneableParamState<OwnState> {
  at::Tensor mean;
  at::Tensor spread;
  at::Tensor most;
  int64_t count = 0;
};

template <typename Rule>
class Own : public torch::optim::Optimizer {
 public:
  explicit Own(std::vector<at::Tensor> parameters, OwnOptions options = {})
      : Optimizer(std::move(parameters), std::make_unique<OwnOptions>(options)) {
    if constexpr (requires(OwnState & made) { Rule::make(at::Tensor(), made); }) {
      for (const at::Tensor& parameter : param_groups()[0].params()) {
        auto made = std::make_unique<OwnState>();
        Rule::make(parameter, *made);
        state()[parameter.unsafeGetTensorImpl()] = std::move(made);
      }
    }
  }

  at::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      auto& options = static_cast<OwnOptions&>(group.options());
      if constexpr (requires { Rule::begin(group.params(), options); }) {
        Rule::begin(group.params(), options);
      }
      for (at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        std::unique_ptr<torch::optim::OptimizerParamState>& state =
            this->state()[parameter.unsafeGetTensorImpl()];
        if (state == nullptr) state = std::make_unique<OwnState>();
        auto& own = static_cast<OwnState&>(*state);
        ++own.count;
        Rule::update(parameter, parameter.grad(), own, options);
      }
    }
    return {};
  }
};

/// AdaBelief (arXiv 2010.07468) without bias corrections of its eps. A step replaces states, except
/// one that is updated in place.
struct Belief {
  static constexpr const char* kName = "AdaBelief";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    if (!state.mean.defined()) state.mean = torch::zeros_like(parameter);
    if (!state.spread.defined()) state.spread = torch::zeros_like(parameter);
    const auto count = static_cast<double>(state.count);
    state.mean.mul_(options.beta).add_(gradient, 1 - options.beta);
    const at::Tensor surprise = gradient - state.mean;
    state.spread = state.spread * 0.99 + surprise * surprise * 0.01 + 1e-8;
    at::Tensor spread = state.spread;
    if (options.uses_maxima) {
      state.most = state.most.defined() ? torch::maximum(state.most, spread) : spread.clone();
      spread = state.most;
    }
    const double correction = std::sqrt(1 - std::pow(0.99, count));
    const double rate = options.lr / (1 - std::pow(options.beta, count));
    parameter.addcdiv_(state.mean, spread.sqrt().div_(correction).add_(1e-6), -rate);
  }
};

/// SGD with its momentum in bfloat16, whatever the parameters' dtype.
struct NarrowMomentum {
  static constexpr const char* kName = "NarrowMomentum";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    at::Tensor momentum = gradient;
    if (state.mean.defined()) {
      momentum = state.mean.to(gradient.scalar_type()) * options.beta + gradient;
    }
    state.mean = momentum.to(at::kBFloat16);
    parameter.add_(momentum, -options.lr);
  }
};

/// Not elementwise: an element's step depends on its parameter's norm, as in LAMB.
struct NormOfParameter {
  static constexpr const char* kName = "NormOfParameter";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    if (!state.mean.defined()) state.mean = torch::zeros_like(parameter);
    state.mean.mul_(options.beta).add_(gradient);
    const double trust = parameter.norm().item<double>() / (gradient.norm().item<double>() + 1e-6);
    parameter.add_(state.mean, -options.lr * trust);
  }
};

}  // namespace tessera::internal::testing

namespace tessera {

template <typename Rule>
struct ElementwiseTraits<internal::testing::Own<Rule>> {
  using State = internal::testing::OwnState;
  using Options = internal::testing::OwnOptions;
  static ElementwiseForm<Options, State> form() {
    ElementwiseForm<Options, State> form;
    form.name = Rule::kName;
    form.states = {{"mean", [](auto& of) -> auto& {return of.mean;
  }
}, {"spread", &State::spread}, {
  "most", &State::most
}
};  // namespace tessera
form.step = &State::count;
form.numbers = {{"beta", &Options::beta},
                {"uses_maxima", &Options::uses_maxima, /*chooses_states=*/true}};
if constexpr (requires { Rule::kHasPeriod; }) {
  form.numbers.emplace_back("period", &Options::period);
}
return form;
}
}
;

}  // namespace tessera
