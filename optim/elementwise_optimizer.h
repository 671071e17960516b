#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/optim/flat_optimizer.h"

namespace tessera::internal {

/// Throws c10::Error unless the shard's values are a contiguous 1-d tensor of Float or Double and
/// its segments parts of trainable parameters inside it.
void require_shard(const OptimizerShard& shard, const ParameterTable& table);

/// What optimizers have in common whose states are as long as the slices, Base being HostOptimizer
/// or DeviceOptimizer: shards and states.
template <typename Base>
class ElementwiseOptimizer : public Base {
 public:
  /// `zeros` makes a state: zeros(numel, dtype).
  template <typename Zeros>
  ElementwiseOptimizer(const ParameterTable& table, const OptimizerPlan& plan,
                       const std::vector<size_t>& group_of, std::vector<OptimizerShard> shards,
                       const Zeros& zeros)
      : Base(table, plan, group_of), shards_(std::move(shards)) {
    for (const OptimizerShard& shard : shards_) {
      require_shard(shard, table);
      std::vector<at::Tensor>& states = states_.emplace_back();
      for (const ElementState& state : this->states()) {
        states.push_back(zeros(shard.values.numel(), state.dtype_over(shard.values.scalar_type())));
      }
    }
  }

  const at::Tensor& state(size_t shard, size_t state) const override {
    return states_.at(shard).at(state);
  }
  int64_t state_bytes() const override {
    int64_t bytes = 0;
    for (const std::vector<at::Tensor>& states : states_) {
      for (const at::Tensor& state : states) bytes += static_cast<int64_t>(state.nbytes());
    }
    return bytes;
  }

 protected:
  std::vector<OptimizerShard> shards_;
  std::vector<std::vector<at::Tensor>> states_;  // per shard, as states()
};

}  // namespace tessera::internal
