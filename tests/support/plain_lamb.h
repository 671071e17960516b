#pragma once

#include <cmath>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/lamb_options.h"

namespace tessera::internal::testing {

/// LAMB, operator by operator.
class PlainLamb {
 public:
  PlainLamb(std::vector<at::Tensor> parameters, const LambOptions& options)
      : parameters_(std::move(parameters)), options_(options), steps_(parameters_.size(), 0) {
    for (const at::Tensor& parameter : parameters_) {
      means_.push_back(torch::zeros_like(parameter));
      squares_.push_back(torch::zeros_like(parameter));
    }
  }

  void step() {
    const torch::NoGradGuard no_grad;
    const auto [beta1, beta2] = options_.betas();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& parameter = parameters_[i];
      const at::Tensor gradient = parameter.grad();
      if (!gradient.defined()) continue;
      ++steps_[i];
      means_[i] = means_[i] * beta1 + gradient * (1 - beta1);
      squares_[i] = squares_[i] * beta2 + gradient * gradient * (1 - beta2);
      const at::Tensor mean = means_[i] / (1 - std::pow(beta1, steps_[i]));
      const at::Tensor square = squares_[i] / (1 - std::pow(beta2, steps_[i]));
      const at::Tensor direction =
          mean / (square.sqrt() + options_.eps()) + parameter * options_.weight_decay();
      const double of_values = parameter.to(at::kDouble).norm().item<double>();
      const double of_direction = direction.to(at::kDouble).norm().item<double>();
      const double ratio = of_values != 0 && of_direction != 0 ? of_values / of_direction : 1.0;
      parameter.sub_(direction * (options_.lr() * ratio));
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  LambOptions options_;
  std::vector<int> steps_;
  std::vector<at::Tensor> means_;
  std::vector<at::Tensor> squares_;
};

}  // namespace tessera::internal::testing
