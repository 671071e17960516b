#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include <torch/torch.h>

namespace tessera::internal::testing {

/// PowerSGD of one matrix (arXiv 1905.13727, algorithms 1 and 2), computed by one process with all
/// ranks' gradients, with LibTorch's operators and its QR decomposition.
class PlainPowerSgd {
 public:
  /// `q` [columns, rank] is used by the first backward.
  PlainPowerSgd(at::Tensor q, size_t ranks, bool feeds_back)
      : q_(std::move(q)), errors_(ranks), feeds_back_(feeds_back) {}

  /// Returns the mean that all ranks use, from each rank's gradient [rows, columns].
  at::Tensor mean(const std::vector<at::Tensor>& gradients) {
    std::vector<at::Tensor> matrices;
    for (size_t rank = 0; rank < gradients.size(); ++rank) {
      const bool has_error = feeds_back_ && errors_[rank].defined();
      matrices.push_back(has_error ? gradients[rank] + errors_[rank] : gradients[rank]);
    }
    const at::Tensor sum = at::stack(matrices).sum(0);
    const at::Tensor p = basis_of(sum.mm(basis_of(q_)));
    q_ = sum.t().mm(p) / static_cast<double>(gradients.size());
    at::Tensor result = p.mm(q_.t());
    for (size_t rank = 0; rank < gradients.size(); ++rank) errors_[rank] = matrices[rank] - result;
    return result;
  }

  const std::vector<at::Tensor>& errors() const { return errors_; }

 private:
  static at::Tensor basis_of(const at::Tensor& columns) {
    return std::get<0>(at::linalg_qr(columns));
  }

  at::Tensor q_;
  std::vector<at::Tensor> errors_;
  const bool feeds_back_;
};

}  // namespace tessera::internal::testing
