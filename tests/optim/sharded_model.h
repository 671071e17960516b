#pragma once

#include <memory>
#include <vector>

#include <torch/torch.h>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Parameters in one flat buffer, updated by one CpuOptimizer per slice in one process, as that
/// many ranks would do.
class ShardedModel {
 public:
  /// The trainable parameters are those of `tensors` that require grad, all in one unit.
  ShardedModel(std::vector<NamedTensor> tensors, const OptimizerPlan& plan, int slices)
      : table_(std::move(tensors)), units_(table_, {{"unit", trainable(table_)}}, slices) {
    const FlatLayout& layout = units_[0].layout;
    flat_ = torch::zeros({layout.numel()}, layout.dtype());
    gradient_ = torch::zeros_like(flat_);
    for (size_t i = 0; i < layout.parameters(); ++i) {
      const at::Tensor& parameter = table_[units_[0].parameters[i]].tensor;
      const at::Tensor view = view_like(flat_, layout.parameter_range(i), parameter);
      view.copy_(parameter.detach());
      parameter.set_data(view);
    }
    const std::vector<size_t> group_of = plan.assign(table_).value();
    for (int slice = 0; slice < slices; ++slice) {
      const Range range = layout.slice_range(slice);
      OptimizerShard shard{flat_.narrow(0, range.begin, range.numel), layout.segments(range)};
      for (Segment& segment : shard.segments) {
        segment.parameter = units_[0].parameters[segment.parameter];
        segment.buffer_offset -= range.begin;
      }
      optimizers_.push_back(make_cpu_optimizer(table_, plan, group_of, {std::move(shard)}));
    }
  }

  const ParameterTable& table() const { return table_; }
  const at::Tensor& flat() const { return flat_; }
  CpuOptimizer& optimizer(int slice) { return *optimizers_[static_cast<size_t>(slice)]; }

  /// Updates all slices once. `gradients` has one entry per parameter of the table, undefined for
  /// unused ones.
  void update(const std::vector<at::Tensor>& gradients, double scale = 1.0) {
    std::vector<uint8_t> used(table_.size(), 0);
    const FlatLayout& layout = units_[0].layout;
    for (size_t i = 0; i < layout.parameters(); ++i) {
      const size_t parameter = units_[0].parameters[i];
      const at::Tensor& gradient = gradients[parameter];
      used[parameter] = gradient.defined() ? 1 : 0;
      if (!gradient.defined()) continue;
      view_like(gradient_, layout.parameter_range(i), table_[parameter].tensor).copy_(gradient);
    }
    for (int slice = 0; slice < layout.slices(); ++slice) {
      const Range range = layout.slice_range(slice);
      const at::Tensor own = gradient_.narrow(0, range.begin, range.numel);
      optimizer(slice).update(0, own, units_[0].parameters, used, scale);
    }
  }

 private:
  static std::vector<size_t> trainable(const ParameterTable& table) {
    std::vector<size_t> indices;
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].is_trainable) indices.push_back(i);
    }
    return indices;
  }

  ParameterTable table_;
  UnitPlan units_;
  at::Tensor flat_;
  at::Tensor gradient_;
  std::vector<std::unique_ptr<CpuOptimizer>> optimizers_;
};

}  // namespace tessera::internal
