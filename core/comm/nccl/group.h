#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/self_messages.h"
#include "tessera/core/comm/groups/unwinding.h"
#include "tessera/core/comm/nccl/meeting.h"
#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/comm/nccl/stream_lane.h"
#include "tessera/core/comm/nccl/world.h"
#include "tessera/process_group.h"

namespace tessera::internal::nccl {

/// The group of ranks that communicate by NCCL, each on a device of its own. It differs from the
/// contract of ProcessGroup:
/// - Collectives run on the streams of two lanes: reductions and barriers on the reduce lane, other
///   collectives and messages on the gather lane. They run after the work that was on the current
///   stream at the time of the call. Work::wait() makes the current stream wait, not the calling
///   thread.
/// - Calls are not compared in advance, except those that go through the table (Note [Calls that do
///   not fit]).
/// - Sums are NCCL's, in no defined order; kMin and kMax may lose NaN.
/// - Every reduce_scatter of a rank must ask for the same slice as the rank's first reduce_scatter
///   on the group.
/// - Every failure poisons the world: all its groups, on all ranks.
/// - There are no windows and no shared buffers.
/// - Messages to other ranks have no number and are never compared; a time-out names the peer and
///   the tag. Messages of a rank to itself are copies.
class Group final : public ProcessGroup {
 public:
  /// The caller registers `progress` and the communicators with `world`. `rank` is this rank's
  /// number in the group.
  Group(std::shared_ptr<World> world, std::shared_ptr<Progress> progress, int rank,
        std::shared_ptr<Communicator> gather, std::shared_ptr<Communicator> reduce);
  ~Group() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(progress_->world_ranks().size()); }
  std::string_view name() const override { return progress_->group(); }
  std::string_view backend() const override { return "nccl"; }
  Capabilities can() const override {
    return {
        .in_background = true, .completes_on_host = device().is_cpu(), .has_host_channel = true};
  }
  at::Device device() const override { return world_->options().device->torch_device(); }

  /// A barrier is an all_reduce of one element, and blocks until it has run. A gather on the host
  /// goes through the table, where ranks also compare their calls: run() publishes this rank's
  /// part, and Work::wait() waits for the other parts; the time-out counts from wait() on. If the
  /// Work is dropped without wait(), the group stays usable, but this rank does not see whether
  /// calls differ. Throws c10::Error while another gather on the host is open.
  std::shared_ptr<Work> run(const Collective& collective) override;
  /// Local, unless it makes one of NCCL's windows: see NcclOptions::Memory. The memory is
  /// registered with the two lanes of this group, but not with other groups or with the
  /// communicator for permuted slices.
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  /// Returns null; throws CommError if the world has failed.
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override;
  /// Waits until this rank's reductions and barriers on the group have finished, as ncclCommSplit
  /// requires.
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override;
  /// Starts all messages between one ncclGroupStart and ncclGroupEnd.
  std::vector<std::shared_ptr<Work>> run_batch(const std::vector<Collective>& messages) override;

 private:
  std::vector<std::shared_ptr<Communicator>> communicators() const;
  void check_supported(const Collective& collective) const;
  std::shared_ptr<Pending> begin(NumberedCall call, std::shared_ptr<Event> end = nullptr,
                                 std::vector<at::Tensor> tensors = {});
  std::shared_ptr<Pending> issue(StreamLane& lane, NumberedCall call, const Collective& collective);
  std::shared_ptr<Pending> make_unnumbered(NumberedCall call, std::shared_ptr<Event> end = nullptr,
                                           std::vector<at::Tensor> tensors = {});
  void queue(StreamLane& lane, Pending& pending, const Collective& collective);
  std::shared_ptr<Pending> make_message(const Collective& message, std::shared_ptr<Event> end);
  std::shared_ptr<Work> run_message(const Collective& message);
  std::shared_ptr<Work> meet(const Collective& barrier);
  std::shared_ptr<Work> gather_on_host(const Collective& collective);
  std::shared_ptr<Group> split_off(Pending& pending, const std::vector<int>& ranks,
                                   const std::string& group);
  Communicator& communicator_for(Pending& pending, int slice);
  void agree_on_slices(Pending& pending, int slice);
  void drain(Pending& pending);

  const Unwinding unwinding_;
  const GroupPresence presence_;
  const std::shared_ptr<World> world_;
  const std::shared_ptr<Progress> progress_;
  const int rank_;
  StreamLane gather_;
  StreamLane reduce_;
  // The communicator of the reduce lane for slices that are not in rank order; null if they are.
  std::shared_ptr<Communicator> permuted_;
  std::optional<int> slice_;  // this rank's slice, set once the ranks have agreed on slices
  std::set<std::string, std::less<>> subgroup_names_;
  const std::shared_ptr<HostChannel> host_channel_ = std::make_shared<HostChannel>();
  // True if allocate() makes NCCL's windows: the options ask for them, and this rank has not yet
  // begun a reduction or an all_gather on the group.
  bool makes_windows_;
  at::Tensor token_;  // what barriers reduce
  SelfMessages own_messages_;
};

/// Collective over all ranks; blocks until they have come. Returns the group of all ranks of a new
/// NCCL world. Rank 0 passes the communicator's id to the others through the table. Throws
/// CommError that names the ranks that do not come within the time-out.
std::shared_ptr<Group> make_world(WorldOptions options);

}  // namespace tessera::internal::nccl
