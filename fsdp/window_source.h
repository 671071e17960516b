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

/// Reads the values of one split unit: from the (first) shards of the ranks over which the
/// parameters are split, or, after forward, from second shards, which fewer and nearer ranks hold.
/// Reads are one-sided, so each rank may gather independently.
///
/// Note [Second shards]
/// Under Options::reshard_after_forward = n with 1 < n < p, a rank that frees a unit after forward
/// keeps 1/n of it; n neighbouring ranks together have all of it. Ranks may read and write second
/// shards at different times, so each second shard carries a stamp, the number of the update that
/// made its values. If a reader finds another number than the present update's, it reads that 1/n
/// of the unit from the first shards instead. Source: ZeRO++ (arXiv 2306.10209), section 3.2 (hpZ).
class WindowSource {
 public:
  /// Over how many ranks second shards are split, and where their stamps lie.
  struct SecondShards {
    int ranks = 0;  ///< n; if it is 1 or p, there are no second shards
    /// Window of the stamps: int64, one per unit; null if there are no second shards.
    Window* stamps = nullptr;
    int64_t place = 0;  ///< index of this unit's stamp in `stamps`
  };

  /// `shard`: this rank's first shard of the unit, made by group.allocate(). `group` must have
  /// windows. What the references refer to must outlive this object. Collective over `group`.
  WindowSource(ProcessGroup& group, const SliceMap& slices, const FlatLayout& layout,
               std::string name, const at::Tensor& shard, SecondShards second, MemoryMeter& meter);
  ~WindowSource();
  WindowSource(const WindowSource&) = delete;
  WindowSource& operator=(const WindowSource&) = delete;

  /// Which shards fetch() reads. kSecond: second shards if there are any, else first shards.
  enum class From : uint8_t { kFirst, kSecond };

  /// Reads the whole unit into `to` [unit numel]; all its reads are under way simultaneously.
  /// Returns the bytes that came from other ranks. Local, blocks until `to` is whole. Thread-safe.
  /// Throws CommError if the group has failed or an owner does not answer.
  int64_t fetch(const at::Tensor& to, From from);

  /// Copies this rank's part of `full`, the whole unit, to its second shard, if there are second
  /// shards and this one is out of date.
  void keep_second(const at::Tensor& full);

  /// Called on all ranks, between fences, after values have changed. From now on second shards with
  /// the stamp of an earlier update are out of date, and reads of first shards ask for the new
  /// version. Local.
  void invalidate() { ++update_; }

 private:
  int64_t start(const at::Tensor& to, From from, ReadBatch& reads) const;
  int64_t start_first(Range range, const at::Tensor& to, ReadBatch& reads) const;

  const SliceMap& slices_;
  const FlatLayout& layout_;
  const std::string name_;
  MemoryMeter& meter_;
  const std::vector<int> owners_;  // the rank that has each slice of the parameters
  const std::unique_ptr<Window> first_;
  const SecondShards seconds_;
  at::Tensor second_shard_;  // [unit numel / n]
  std::unique_ptr<Window> second_;
  // One more than the number of calls of invalidate(), so that the stamps, which are 0 at first,
  // are out of date. Equal on all ranks.
  int64_t update_ = 1;
};

}  // namespace tessera::internal
