#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/muon_options.h"

namespace tessera::internal::testing {

/// PyTorch's torch.optim.Muon (2.9), operator by operator, for matrices. PyTorch's iteration always
/// runs in bfloat16; this one does if MuonOptions::ns_in_bfloat16 is set.
class PlainMuon {
 public:
  PlainMuon(std::vector<at::Tensor> parameters, MuonOptions options)
      : parameters_(std::move(parameters)), options_(std::move(options)) {
    for (const at::Tensor& parameter : parameters_) {
      momenta_.push_back(torch::zeros_like(parameter));
    }
  }

  MuonOptions& options() { return options_; }

  void step() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& parameter = parameters_[i];
      const at::Tensor gradient = parameter.grad();
      if (!gradient.defined()) continue;
      momenta_[i].lerp_(gradient, 1 - options_.momentum());
      const at::Tensor direction =
          options_.nesterov() ? gradient.lerp(momenta_[i], options_.momentum()) : momenta_[i];
      const at::Tensor result = orthogonalised(direction);
      parameter.mul_(1 - options_.lr() * options_.weight_decay());
      parameter.add_(result, -adjusted_rate(parameter));
    }
  }

 private:
  at::Tensor orthogonalised(const at::Tensor& direction) const {
    const auto [a, b, c] = options_.ns_coefficients();
    const bool is_tall = direction.size(0) > direction.size(1);
    at::Tensor x = options_.ns_in_bfloat16() ? direction.to(at::kBFloat16) : direction.clone();
    if (is_tall) x = x.t();
    x.div_(x.norm().clamp(options_.eps()));
    for (int64_t step = 0; step < options_.ns_steps(); ++step) {
      const at::Tensor gram = x.mm(x.t());
      const at::Tensor change = torch::addmm(gram, gram, gram, b, c);
      x = torch::addmm(x, change, x, a);
    }
    return is_tall ? x.t() : x;
  }

  double adjusted_rate(const at::Tensor& parameter) const {
    const auto rows = static_cast<double>(parameter.size(0));
    const auto cols = static_cast<double>(parameter.size(1));
    if (options_.adjust_lr() == MuonOptions::AdjustLr::kMatchRmsAdamW) {
      return options_.lr() * (0.2 * std::sqrt(std::max(rows, cols)));
    }
    return options_.lr() * std::sqrt(std::max(1.0, rows / cols));
  }

  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> momenta_;
  MuonOptions options_;
};

}  // namespace tessera::internal::testing
