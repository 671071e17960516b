#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/optim/algorithm/algorithm.h"
#include "tessera/weight_average.h"

namespace tessera::internal {

/// The running average of the values that an optimizer updates: a flat tensor for each of the
/// optimizer's shards. Lies in host memory. Elementwise: the bits of an element do not depend on
/// how buffers are cut. All its calls are local and, except the constructor, allocate nothing.
class FlatAverage {
 public:
  /// `values`: the shards, contiguous 1-d tensors of Float or Double. Their averages are zero until
  /// the first update; `allocate` makes their memory, by default allocate_private(). Throws
  /// c10::Error for other tensors.
  FlatAverage(const WeightAverage& setting, const std::vector<at::Tensor>& values,
              const AllocateState& allocate = {});

  const WeightAverage& setting() const { return setting_; }
  /// Returns true if step number `step` updates the average. The first step is number 1.
  bool is_due(int64_t step) const;

  /// Updates the average of shard number `shard` with the shard's present `values`. An update is
  /// one call for each shard, then count_update().
  void update(size_t shard, const at::Tensor& values);
  void count_update() { ++updates_; }

  /// Swaps the contents of `values` and of the average of shard number `shard`, without memory for
  /// a copy.
  void swap(size_t shard, const at::Tensor& values);

  // State that a StateDict holds.

  /// Returns the average of shard number `shard`: [slice numel], padding zero. The tensor is this
  /// object's own memory; loading writes to it.
  const at::Tensor& average(size_t shard) const { return averages_[shard]; }
  /// The number of updates so far.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

  int64_t bytes() const;

 private:
  const WeightAverage setting_;
  std::vector<at::Tensor> averages_;
  int64_t updates_ = 0;
};

}  // namespace tessera::internal
