#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "tessera/core/layout/partial_state_layout.h"
#include "tessera/optim/slices/flat_optimizer.h"

namespace tessera::internal {

/// Throws c10::Error unless the shard's values are a contiguous 1-d tensor of Float or Double and
/// its segments are parts of trainable parameters and lie inside the tensor.
void require_shard(const OptimizerShard& shard, const ParameterTable& table);

/// The shards and states of optimizers that keep states beside the slices. Base is CpuOptimizer or
/// GpuOptimizer.
template <typename Base>
class ElementwiseOptimizer : public Base {
 public:
  /// zeros(numel, dtype) returns the memory of a state, filled with zeros.
  template <typename Zeros>
  ElementwiseOptimizer(const ParameterTable& table, const OptimizerPlan& plan,
                       const std::vector<size_t>& group_of, std::vector<OptimizerShard> shards,
                       const Zeros& zeros)
      : Base(table, plan, group_of), shards_(std::move(shards)) {
    for (const OptimizerShard& shard : shards_) {
      require_shard(shard, table);
      std::vector<at::Tensor>& states = states_.emplace_back();
      std::vector<PartialStateLayout>& layouts = layouts_.emplace_back();
      for (const KeptState& state : this->states()) {
        layouts.emplace_back(shard.segments, shard.values.numel(),
                             [&state](size_t parameter) { return state.has(parameter); });
        states.push_back(zeros(state.values_of(layouts.back().numel()),
                               state.dtype_over(shard.values.scalar_type())));
      }
    }
  }

  const at::Tensor& state(size_t shard, size_t state) const override {
    return states_.at(shard).at(state);
  }
  at::Tensor state_of(size_t shard, const Segment& segment, size_t state) const override {
    const int64_t at = place_of(shard, segment, state);
    TORCH_INTERNAL_ASSERT(at >= 0);
    return this->state(shard, state).narrow(0, at, this->states()[state].values_of(segment.numel));
  }
  int64_t state_bytes() const override {
    int64_t bytes = 0;
    for (const std::vector<at::Tensor>& states : states_) {
      for (const at::Tensor& state : states) bytes += static_cast<int64_t>(state.nbytes());
    }
    return bytes;
  }

 protected:
  /// Returns the index of a segment's first value in states_[shard][state]; -1 if the segment's
  /// parameter does not have the state.
  int64_t place_of(size_t shard, const Segment& segment, size_t state) const {
    const int64_t at = layouts_.at(shard).at(state).find(segment.buffer_offset);
    const int64_t block = this->states()[state].block_numel;
    TORCH_INTERNAL_ASSERT(at < 0 || at % block == 0);
    return at < 0 ? -1 : at / block;
  }

  std::vector<OptimizerShard> shards_;
  std::vector<std::vector<at::Tensor>> states_;           // [shard][state], states as in states()
  std::vector<std::vector<PartialStateLayout>> layouts_;  // [shard][state]: where the elements lie
};

}  // namespace tessera::internal
