#pragma once

#include <cstddef>
#include <memory>
#include <ostream>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "tessera/process_group.h"

namespace tessera::nn {

/// torch::nn::BatchNorm<D>d that, in training, takes mean and variance over the samples of all
/// ranks of a group, as if their batches were one. Output, gradients and running statistics are
/// equal, within rounding, to those of BatchNorm on the concatenated batch; running statistics have
/// the same bits on all ranks. The names and shapes of its parameters and buffers are BatchNorm's,
/// so checkpoints of one fit the other. Works under every strategy and without an engine.
///
/// `group`: its ranks share statistics and exchange them over it. Nothing else may use it while
/// forward or backward run. It may be a subgroup, duplicate(*world, "batch norm"), or the world
/// that was given to parallelize(), because engines communicate over groups of their own. All
/// layers of a model, and its clones, may share one group. Layers keep the group alive. A null
/// group throws c10::Error.
///
/// In training, forward is collective over the group (an all-gather of 2 C + 1 fp64 numbers, C =
/// num_features: count, means, sums of squared deviations), and so is backward unless the input
/// needs no gradient (an all-reduce of 2 C fp64 numbers). Blocking. All ranks run the same layers
/// in the same order, in forward, in backward and in what activation checkpointing runs again; the
/// sizes of their batches may differ, and may be zero: a rank with an empty batch makes the same
/// calls, with a loss that depends on its empty outputs. If a rank does not call the layer, the
/// others throw CommError at the group's time-out. If ranks differ in the number of channels, all
/// ranks throw CommError at once; on CPUs also if they run different layers. In eval mode and in a
/// world of one the layer sends nothing and acts as BatchNorm.
///
/// Each rank takes the mean and variance of its own samples by LibTorch's kernels, which give fp64
/// for fp64 inputs and fp32 for others. These are merged in fp64 and in rank order (Chan, Golub and
/// LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979) and
/// rounded once to the dtype in which they came. Inputs may be fp32 or fp64; with parameters of
/// fp32 or of 16 bits also bf16 or fp16. They may have any strides (contiguous, channels-last). The
/// output has the input's dtype and memory format. Gradients of weight and bias are those of this
/// rank's samples; the engine averages them like all gradients. On a GPU the host waits for the
/// statistics.
///
/// Throws c10::Error if the input has another number of dimensions or channels (on this rank), if
/// all batches together have fewer than two values per channel (on all ranks), when backward is
/// differentiated again (create_graph), and in a backward with weight 0 (BackwardOptions::weight)
/// if the input needs a gradient and this rank's batch is not empty (on this rank). Semantics of
/// torch.nn.SyncBatchNorm, which has no C++ counterpart.
template <size_t D, typename Derived>
class SyncBatchNormImplBase
    : public torch::nn::NormImplBase<D, Derived, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImplBase(const torch::nn::BatchNormOptions& options,
                        std::shared_ptr<ProcessGroup> group);

  at::Tensor forward(const at::Tensor& input);

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  std::shared_ptr<ProcessGroup> group_;
};

/// For inputs [N, C] and [N, C, L].
class SyncBatchNorm1dImpl : public SyncBatchNormImplBase<1, SyncBatchNorm1dImpl> {
 public:
  using SyncBatchNormImplBase<1, SyncBatchNorm1dImpl>::SyncBatchNormImplBase;
};

/// For inputs [N, C, H, W].
class SyncBatchNorm2dImpl : public SyncBatchNormImplBase<2, SyncBatchNorm2dImpl> {
 public:
  using SyncBatchNormImplBase<2, SyncBatchNorm2dImpl>::SyncBatchNormImplBase;
};

/// For inputs [N, C, D, H, W].
class SyncBatchNorm3dImpl : public SyncBatchNormImplBase<3, SyncBatchNorm3dImpl> {
 public:
  using SyncBatchNormImplBase<3, SyncBatchNorm3dImpl>::SyncBatchNormImplBase;
};

extern template class SyncBatchNormImplBase<1, SyncBatchNorm1dImpl>;
extern template class SyncBatchNormImplBase<2, SyncBatchNorm2dImpl>;
extern template class SyncBatchNormImplBase<3, SyncBatchNorm3dImpl>;

TORCH_MODULE(SyncBatchNorm1d);
TORCH_MODULE(SyncBatchNorm2d);
TORCH_MODULE(SyncBatchNorm3d);

}  // namespace tessera::nn
