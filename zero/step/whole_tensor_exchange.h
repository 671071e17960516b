#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/groups/read_batch.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/core/options/resolved_options.h"
#include "tessera/core/step/host_all_gather.h"
#include "tessera/memory_meter.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/trace.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/step/whole_tensor_plan.h"

namespace tessera::internal {

/// Serves parameters that are transformed as a whole: sends directions (and values) to the
/// parameters' owners, results back to the ranks with the slices, and sums of squares to all ranks.
/// It works between the ranks that share a unit's optimizer slices; each replica of the optimizer
/// state has an exchange of its own. Note [Exchange of directions] in whole_tensor_exchange.cc.
/// Used by one thread.
class WholeTensorExchange {
 public:
  /// Returns null where all algorithms of `optimizer` are elementwise. Tells the WholeTensors of
  /// `optimizer` where directions lie. Where each rank has all slices (o = 1), nothing is
  /// exchanged. Collective over `group`. References and `trace` (may be null) must outlive it.
  static std::unique_ptr<WholeTensorExchange> make(ProcessGroup& group, const UnitPlan& plan,
                                                   const SliceMap& slices,
                                                   const ResolvedOptions& options,
                                                   const ParameterTable& table,
                                                   CpuOptimizer& optimizer, MemoryMeter& meter,
                                                   Trace* trace);
  ~WholeTensorExchange();
  WholeTensorExchange(const WholeTensorExchange&) = delete;
  WholeTensorExchange& operator=(const WholeTensorExchange&) = delete;

  /// Returns the units with parameters for which update() only stores directions, ascending.
  const std::vector<size_t>& awaited_units() const { return awaited_units_; }
  bool is_awaited(size_t unit) const;

  /// Call it after update() of all units. Transforms the used parameters (used[i] != 0, by table
  /// entry; equal on all ranks) and puts this rank's pieces of the results into their places.
  /// Collective over the ranks that share slices; blocks.
  void run(const std::vector<uint8_t>& used);

  const WholeTensorPlan& plan() const { return plan_; }
  /// Returns this rank's number in the plan.
  int rank() const { return rank_; }
  /// Returns the size of gathered_ in bytes; 0 if there is none. The memory formula counts
  /// gathered_ apart from the plan's bytes, because it lies on the group's device.
  int64_t gathered_bytes() const {
    return group_ == nullptr || group_->can().one_sided_reads ? 0 : plan_.gathered_bytes();
  }
  /// Returns how many bytes of this object's memory count as MemoryClass::kControl.
  int64_t control_bytes() const { return squares_.has_value() ? squares_->bytes() : 0; }

 private:
  WholeTensorExchange(ProcessGroup& group, WholeTensorPlan plan, int rank, const SliceMap& slices,
                      const ResolvedOptions& options, const ParameterTable& table,
                      WholeTensors& whole, MemoryMeter& meter, Trace* trace);

  void keep_states();
  void place_directions();
  void exchange_squares(const std::vector<uint8_t>& used);
  void publish(Range bytes, std::string_view tag);
  void fetch(int from, int64_t begin_bytes, const at::Tensor& to, std::string_view tag,
             ReadBatch& reads);
  at::Tensor part_of_memory(int64_t begin_bytes, int64_t numel, at::ScalarType dtype) const;
  at::Tensor result_of(const WholeTensorPlan::Entry& entry) const;
  at::Tensor direction_of(const WholeTensorPlan::Entry& entry,
                          const WholeTensorPlan::Piece& piece) const;
  at::Tensor values_of(const WholeTensorPlan::Entry& entry,
                       const WholeTensorPlan::Piece& piece) const;
  void transform(const WholeTensorPlan::Entry& entry);
  void take_results(const WholeTensorPlan::Entry& entry, ReadBatch& reads);

  const WholeTensorPlan plan_;
  const int rank_;
  const ParameterTable& table_;
  WholeTensors& whole_;
  MemoryMeter& meter_;
  Trace* const trace_;
  const MemoryClass class_;
  std::vector<size_t> awaited_units_;

  ProcessGroup* group_ = nullptr;  // the ranks that share slices; null if this rank has all slices
  std::shared_ptr<ProcessGroup> owned_group_;
  at::Tensor states_;               // states that this rank keeps whole, bytes; undefined: none
  at::Tensor memory_;               // [directions | results], bytes
  std::unique_ptr<Window> window_;  // over memory_; null without one-sided reads
  // Without one-sided reads: the published part of every rank's memory_, [ranks, bytes]; sized for
  // the larger of the directions that travel and the results. On the device.
  at::Tensor gathered_;
  Range published_;  // the part of each rank's memory_ that gathered_ has
  std::vector<const WholeTensorPlan::Entry*> scaled_;  // entries that need only norms
  std::optional<HostAllGather> squares_;  // sums of squares of scaled_; unset if scaled_ is empty
  int64_t bytes_ = 0;
};

}  // namespace tessera::internal
