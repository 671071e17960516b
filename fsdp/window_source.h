#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/groups/read_batch.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/flat_layout.h"
#include "tessera/memory_meter.h"
#include "tessera/process_group.h"
#include "tessera/window.h"

namespace tessera::internal {

/// Reads the values of one split unit from the shards of the ranks that differ in the parameters'
/// coordinate only, or, after forward, from second shards of fewer, nearer ranks. Reads are
/// one-sided, so each rank may gather independently.
///
/// Note [Second shards]
/// Under Options::reshard_after_forward = n with 1 < n < p, a rank that frees a unit after forward
/// keeps 1/n of it; n neighbouring ranks together have all of it. Ranks may read and write second
/// shards at different times, so each second shard carries the number of the update that made its
/// values. A reader that finds the number of another update takes that part from the first shards.
/// Source: ZeRO++ (arXiv 2306.10209), section 3.2 (hpZ).
class WindowSource {
 public:
  /// The ranks that hold second shards, and where they store the number of the update.
  struct SecondShards {
    int ranks = 0;             ///< n; 1 or p: there are none
    Window* stamps = nullptr;  ///< int64, one word per unit; null if there are none
    int64_t place = 0;         ///< index of this unit's word
  };

  /// `shard`: this rank's parameters of the unit, made by group.allocate(). `group` must have
  /// windows. References must outlive it. Collective over `group`.
  WindowSource(ProcessGroup& group, const SliceMap& slices, const FlatLayout& layout,
               std::string name, const at::Tensor& shard, SecondShards second, MemoryMeter& meter);
  ~WindowSource();
  WindowSource(const WindowSource&) = delete;
  WindowSource& operator=(const WindowSource&) = delete;

  /// Which shards fetch() prefers, where there are second shards.
  enum class From : uint8_t { kFirst, kSecond };

  /// Brings the whole unit into `to` [unit numel], with all reads under way at once. Returns the
  /// bytes that came from other ranks. Local, blocks until `to` is whole. Thread-safe. Throws
  /// CommError if the group has failed or an owner does not answer.
  int64_t fetch(const at::Tensor& to, From from);

  /// Copies this rank's second shard out of `full`, if there is one.
  void keep_second(const at::Tensor& full);

  /// Called on all ranks, between fences, when values have changed: second shards are out of date,
  /// and first shards are read as a new version. Local.
  void invalidate() { ++update_; }

 private:
  int64_t start(const at::Tensor& to, From from, ReadBatch& reads) const;
  int64_t start_first(Range range, const at::Tensor& to, ReadBatch& reads) const;

  const SliceMap& slices_;
  const FlatLayout& layout_;
  const std::string name_;
  MemoryMeter& meter_;
  const std::vector<int> owners_;  // the rank that has each parameter slice
  const std::unique_ptr<Window> first_;
  const SecondShards seconds_;
  at::Tensor second_shard_;  // [unit numel / n]
  std::unique_ptr<Window> second_;
  int64_t update_ = 1;  // equal on all ranks
};

}  // namespace tessera::internal
