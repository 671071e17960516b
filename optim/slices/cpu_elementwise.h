#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optim/slices/elementwise_optimizer.h"

namespace tessera::internal {

/// The optimizer on the host. An update is one pass over values, gradient and states, in which each
/// parameter is updated by its group's algorithm. WholeTensors does the rest for algorithms that
/// are not elementwise.
class CpuElementwise final : public ElementwiseOptimizer<CpuOptimizer> {
 public:
  CpuElementwise(const ParameterTable& table, const OptimizerPlan& plan,
                 const std::vector<size_t>& group_of, std::vector<OptimizerShard> shards,
                 const AllocateState& allocate);

  void update(size_t shard, const at::Tensor& gradient, std::span<const size_t> parameters,
              std::span<const uint8_t> used, double gradient_scale) override;
  WholeTensors* whole_tensors() override { return whole_.get(); }
  const WholeTensors* whole_states() const override { return whole_.get(); }

  std::vector<int64_t> step_counts() const override { return steps_; }
  void set_step_counts(std::span<const int64_t> counts) override;

 private:
  ElementUpdate& update_of(size_t parameter) const {
    return *update_of_group_[groups().group_of(parameter)];
  }
  /// Returns the index of a segment's first value in the memory of state number `state` of its
  /// parameter's algorithm; -1 if the parameter does not have that state.
  int64_t& place(size_t shard, size_t segment, size_t state) {
    return places_[shard][segment * ElementUpdate::kMaxStates + state];
  }
  void place_states(size_t shard);
  template <typename T>
  void update_segments(size_t shard, const at::Tensor& gradient, std::span<const uint8_t> used);
  void check_arguments(size_t shard, const at::Tensor& gradient,
                       std::span<const uint8_t> used) const;

  std::vector<std::unique_ptr<ElementUpdate>> updates_;  // one per algorithm
  std::vector<ElementUpdate*> update_of_group_;
  std::vector<std::vector<int64_t>> places_;  // per shard: see place()
  std::vector<int64_t> steps_;                // step count of each of the table's parameters
  std::unique_ptr<WholeTensors> whole_;       // null: all algorithms are elementwise
};

}  // namespace tessera::internal
