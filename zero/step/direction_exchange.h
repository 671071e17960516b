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

/// Brings the directions (and values) of parameters that are transformed as a whole to their owners
/// and the results back, and sums of squares to all, between the ranks that share a unit's
/// optimizer slices; replicas do the same beside each other. Note [Exchange of directions] in
/// direction_exchange.cc. Used by one thread.
class DirectionExchange {
 public:
  /// Null where all algorithms of `optimizer` are elementwise. Tells its WholeTensors where
  /// directions lie. Where each rank has all slices (o = 1), they work alone and nothing is
  /// exchanged. Collective over `group`. References and `trace` (may be null) must outlive it.
  static std::unique_ptr<DirectionExchange> make(ProcessGroup& group, const UnitPlan& plan,
                                                 const SliceMap& slices,
                                                 const ResolvedOptions& options,
                                                 const ParameterTable& table,
                                                 HostOptimizer& optimizer, MemoryMeter& meter,
                                                 Trace* trace);
  ~DirectionExchange();
  DirectionExchange(const DirectionExchange&) = delete;
  DirectionExchange& operator=(const DirectionExchange&) = delete;

  /// Units with parameters of which update() has left only directions, ascending.
  const std::vector<size_t>& awaited_units() const { return awaited_units_; }
  bool is_awaited(size_t unit) const;

  /// update() has been called for all units: transforms what is used (used[i] != 0, by table
  /// entry; equal on all ranks) and puts this rank's pieces of the results into their places.
  /// Collective over the ranks that share slices; blocks.
  void run(const std::vector<uint8_t>& used);

  const WholeTensorPlan& plan() const { return plan_; }
  /// This rank's number in it.
  int rank() const { return rank_; }
  /// What the memory formula has besides the plan's bytes, at the group's device.
  int64_t gathered_bytes() const {
    return group_ == nullptr || group_->can().one_sided_reads ? 0 : plan_.gathered_bytes();
  }
  /// Control memory.
  int64_t control_bytes() const { return squares_.has_value() ? squares_->bytes() : 0; }

 private:
  DirectionExchange(ProcessGroup& group, WholeTensorPlan plan, int rank, const SliceMap& slices,
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

  ProcessGroup* group_ = nullptr;  // of those that share slices; null: alone
  std::shared_ptr<ProcessGroup> owned_group_;
  at::Tensor states_;               // that this rank keeps whole, bytes; undefined: none
  at::Tensor memory_;               // [directions | results], bytes
  std::unique_ptr<Window> window_;  // over memory_; null without one-sided reads
  at::Tensor gathered_;             // [ranks, the larger half of memory_] instead, at the group's
                                    // device
  Range published_;                 // what of each rank's memory_ is in it
  std::vector<const WholeTensorPlan::Entry*> scaled_;  // that need norms
  std::optional<HostAllGather> squares_;               // of these; none where there are none
  int64_t bytes_ = 0;
};

}  // namespace tessera::internal
