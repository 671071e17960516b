#include "tessera/sync_batch_norm.h"

#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <torch/nn/functional/batchnorm.h>

#include "tessera/ddp/batch_statistics.h"

namespace tessera::nn {
namespace {

std::string name_of(size_t dimensions) { return absl::StrCat("SyncBatchNorm", dimensions, "d"); }

}  // namespace

template <size_t D, typename Derived>
SyncBatchNormImplBase<D, Derived>::SyncBatchNormImplBase(const torch::nn::BatchNormOptions& options,
                                                         std::shared_ptr<ProcessGroup> group)
    : torch::nn::NormImplBase<D, Derived, torch::nn::BatchNormOptions>(options),
      group_(std::move(group)) {
  TORCH_CHECK(group_ != nullptr, "[", name_of(D),
              "] group: got null, expected a process group; pass init_process_group()'s result");
}

template <size_t D, typename Derived>
void SyncBatchNormImplBase<D, Derived>::_check_input_dim(const at::Tensor& input) {
  const int64_t dimensions = input.dim();
  constexpr int64_t kMost = static_cast<int64_t>(D) + 2;
  TORCH_CHECK(dimensions == kMost || (D == 1 && dimensions == 2), "[", name_of(D), "] input: got ",
              dimensions, " dimensions, expected ", D == 1 ? "2 or " : "", kMost);
  TORCH_CHECK(input.size(1) == this->options.num_features(), "[", name_of(D), "] input: got ",
              input.size(1), " channels, expected the ", this->options.num_features(),
              " that the layer was made with");
}

template <size_t D, typename Derived>
at::Tensor SyncBatchNormImplBase<D, Derived>::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const bool is_tracked = this->options.track_running_stats();
  double momentum = this->options.momentum().value_or(0.0);
  if (this->is_training() && is_tracked) {
    this->num_batches_tracked += 1;
    // Without a momentum, running statistics are the mean over all batches.
    if (!this->options.momentum().has_value()) {
      momentum = 1.0 / this->num_batches_tracked.template item<double>();
    }
  }
  if (!this->is_training() || group_->size() == 1) {
    return torch::nn::functional::detail::batch_norm(
        input, this->running_mean, this->running_var, this->weight, this->bias,
        this->is_training() || !is_tracked, momentum, this->options.eps());
  }
  return internal::normalize_over_ranks({.input = input,
                                         .weight = this->weight,
                                         .bias = this->bias,
                                         .running_mean = this->running_mean,
                                         .running_var = this->running_var,
                                         .momentum = momentum,
                                         .eps = this->options.eps(),
                                         .group = group_,
                                         .layer = name_of(D)});
}

template <size_t D, typename Derived>
void SyncBatchNormImplBase<D, Derived>::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "tessera::nn::" << name_of(D) << "(" << this->options.num_features()
         << ", eps=" << this->options.eps() << ", momentum=";
  if (this->options.momentum().has_value()) {
    stream << *this->options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << this->options.affine()
         << ", track_running_stats=" << this->options.track_running_stats()
         << ", ranks=" << group_->size() << ")";
}

template class SyncBatchNormImplBase<1, SyncBatchNorm1dImpl>;
template class SyncBatchNormImplBase<2, SyncBatchNorm2dImpl>;
template class SyncBatchNormImplBase<3, SyncBatchNorm3dImpl>;

}  // namespace tessera::nn
