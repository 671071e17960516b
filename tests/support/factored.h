#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/optimizer_plan.h"
#include "tessera/whole_tensor.h"

namespace tessera::internal::testing {

struct FactoredOptions : torch::optim::OptimizerCloneableOptions<FactoredOptions> {
  FactoredOptions(double rate = 0.02) : lr(rate) {}
  double lr;
  double beta = 0.9;
  int64_t largest = 64;  ///< a matrix with more rows has no preconditioner
  double get_lr() const override { return lr; }
  void set_lr(double rate) override { lr = rate; }
};

struct FactoredState : torch::optim::OptimizerCloneableParamState<FactoredState> {
  at::Tensor momentum;        ///< of the parameter's sizes
  at::Tensor rows, cols;      ///< of matrices: means of squares
  at::Tensor preconditioner;  ///< of matrices that are not too large
  at::Tensor squares;         ///< of other parameters
  at::Tensor largest_norm;    ///< one number in fp64
  at::Tensor signs;           ///< two integers
  int64_t count = 0;
};

/// An example of a user's optimizer that needs whole parameters: Adafactor's factored squares, one
/// of Shampoo's preconditioners (without its root), and steps bounded by the parameter's norm.
class Factored : public torch::optim::Optimizer {
 public:
  explicit Factored(std::vector<at::Tensor> parameters, FactoredOptions options = {})
      : Optimizer(std::move(parameters), std::make_unique<FactoredOptions>(options)) {}

  at::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const auto& options = static_cast<FactoredOptions&>(group.options());
      for (at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        auto& state = this->state()[parameter.unsafeGetTensorImpl()];
        if (state == nullptr) state = std::make_unique<FactoredState>();
        update(parameter, static_cast<FactoredState&>(*state), options);
      }
    }
    return {};
  }

 private:
  static void update(const at::Tensor& parameter, FactoredState& state,
                     const FactoredOptions& options) {
    const at::Tensor& gradient = parameter.grad();
    ++state.count;
    at::Tensor direction;
    if (parameter.dim() < 2) {
      if (!state.squares.defined()) state.squares = torch::zeros_like(parameter);
      state.squares.mul_(options.beta).addcmul_(gradient, gradient, 1 - options.beta);
      direction = gradient / (state.squares.sqrt() + 1e-3);
    } else {
      direction = of_matrix(gradient.reshape({gradient.size(0), -1}), state, options)
                      .view(parameter.sizes());
    }
    if (!state.momentum.defined()) state.momentum = torch::zeros_like(parameter);
    state.momentum.mul_(options.beta).add_(direction);
    const at::Tensor norm = state.momentum.norm().to(at::kDouble);
    state.largest_norm =
        state.largest_norm.defined() ? torch::maximum(state.largest_norm, norm) : norm;
    if (!state.signs.defined()) state.signs = torch::zeros({2}, at::kLong);
    state.signs[gradient.sum().item<double>() < 0 ? 0 : 1] += 1;
    const double share = state.signs[0].item<double>() / static_cast<double>(state.count);
    const double size = parameter.norm().item<double>() + 0.1;
    parameter.add_(state.momentum, -options.lr * size * (1 + 0.1 * share) /
                                       (1 + state.largest_norm.item<double>()));
  }

  static at::Tensor of_matrix(const at::Tensor& gradient, FactoredState& state,
                              const FactoredOptions& options) {
    const at::Tensor squares = gradient.square() + 1e-6;
    if (!state.rows.defined()) {
      state.rows = torch::zeros({gradient.size(0)}, gradient.options());
      state.cols = torch::zeros({gradient.size(1)}, gradient.options());
    }
    state.rows.lerp_(squares.mean(1), 1 - options.beta);
    state.cols = state.cols * options.beta + squares.mean(0) * (1 - options.beta);
    const at::Tensor second = state.rows.outer(state.cols) / state.rows.mean();
    at::Tensor direction = gradient / second.sqrt();
    if (gradient.size(0) <= options.largest) {
      if (!state.preconditioner.defined()) {
        state.preconditioner = torch::eye(gradient.size(0), gradient.options()) * 1e-3;
      }
      state.preconditioner.addmm_(gradient, gradient.t());
      direction = direction - state.preconditioner.mm(direction) / state.preconditioner.norm() / 2;
    }
    return direction;
  }
};

/// The sizes of Factored's states.
struct FactoredSizes {
  using Options = FactoredOptions;
  using List = std::vector<int64_t>;
  static int64_t columns(at::IntArrayRef of) {
    return of.empty() || of[0] == 0 ? 0 : c10::multiply_integers(of) / of[0];
  }
  static StateSizes rows(const Options&, at::IntArrayRef of) {
    return of.size() < 2 ? StateSizes() : List{of[0]};
  }
  static StateSizes cols(const Options&, at::IntArrayRef of) {
    return of.size() < 2 ? StateSizes() : List{columns(of)};
  }
  static StateSizes preconditioner(const Options& options, at::IntArrayRef of) {
    return of.size() < 2 || of[0] > options.largest ? StateSizes() : List{of[0], of[0]};
  }
  static StateSizes squares(const Options&, at::IntArrayRef of) {
    return of.size() < 2 ? StateSizes(of.vec()) : StateSizes();
  }
  static StateSizes number(const Options&, at::IntArrayRef) { return List(); }
  static StateSizes two(const Options&, at::IntArrayRef) { return List{2}; }
};

}  // namespace tessera::internal::testing

namespace tessera {

template <>
struct WholeTensorTraits<internal::testing::Factored> {
  using State = internal::testing::FactoredState;
  using Options = internal::testing::FactoredOptions;
  using Sizes = internal::testing::FactoredSizes;
  static WholeTensorForm<Options, State> form() {
    return {.name = "Factored",
            .states = {{"momentum", &State::momentum},
                       {"rows", &State::rows, &Sizes::rows},
                       {"cols", &State::cols, &Sizes::cols},
                       {"preconditioner", &State::preconditioner, &Sizes::preconditioner},
                       {"squares", &State::squares, &Sizes::squares},
                       {"largest_norm", &State::largest_norm, &Sizes::number},
                       {"signs", &State::signs, &Sizes::two}},
            .step = &State::count,
            .numbers = {{"beta", &Options::beta}, {"largest", &Options::largest}}};
  }
};

}  // namespace tessera
