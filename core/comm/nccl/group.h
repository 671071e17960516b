#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/nccl/call.h"
#include "tessera/core/comm/nccl/control_channel.h"
#include "tessera/core/comm/nccl/memory.h"
#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/comm/nccl/stream_lane.h"
#include "tessera/core/comm/nccl/world.h"
#include "tessera/core/comm/process_group.h"

namespace tessera::nccl {

/// Ranks that communicate by NCCL, each on a device of its own. What ProcessGroup promises, except:
/// - Collectives run on the streams of two lanes (all_gather and broadcast on the gather lane,
///   the rest on the reduce lane), behind what the current stream held at the call.
///   Work::wait() makes the current stream wait, not the host; wait_on_host() is for the host.
/// - Calls are not compared in advance, unless asked for (Note [Calls that do not fit]);
///   all_gather_on_host() and subgroup() always are.
/// - Sums are NCCL's, which promises no order; kMin and kMax may lose NaN.
/// - A rank's slice of reduce_scatter stays what the first reduce_scatter on the group asked for.
/// - Every failure poisons the world: all its groups, on all ranks.
/// - There are no windows and no shared buffers.
class Group final : public ProcessGroup {
 public:
  /// The world knows `progress` and the communicators already. `rank` within the group.
  Group(std::shared_ptr<World> world, std::shared_ptr<Progress> progress, int rank,
        std::shared_ptr<Communicator> gather, std::shared_ptr<Communicator> reduce);
  ~Group() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(progress_->world_ranks().size()); }
  std::string_view name() const override { return progress_->group(); }
  std::string_view backend() const override { return "nccl"; }
  bool runs_in_background() const override { return true; }
  at::Device place() const override { return world_->options().device->place(); }
  bool has_windows() const override { return false; }

  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op,
                                   std::string_view tag = {}) override;
  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       ReduceOp op, std::string_view tag = {},
                                       int slice = kOwnRank) override;
  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag = {}) override;
  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root,
                                  std::string_view tag = {}) override;
  /// Through the store, not NCCL; always compared.
  void all_gather_on_host(const at::Tensor& output, const at::Tensor& input,
                          std::string_view tag = {}) override;
  /// The others have this rank's part after the call. The time-out counts from wait() on. A Work
  /// that is dropped instead leaves the group as good as before; this rank then does not learn of
  /// calls that differ. Throws c10::Error while another one is open.
  std::shared_ptr<Work> start_gather_on_host(const at::Tensor& output, const at::Tensor& input,
                                             std::string_view tag = {}) override;
  /// Costs a collective of one element and waits for it on the host.
  void barrier(std::string_view tag = {}) override;
  /// Local, except for windows: see NcclOptions::Memory. Registered memory is known to the two
  /// lanes of this group, not to other groups, nor to the communicator of permuted slices.
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  /// Throws c10::Error: memory of another device cannot be read without its rank.
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override;
  /// Null.
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override;
  /// Waits until this rank's collectives on the group are over, as ncclCommSplit asks.
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override;

  /// Sums of factor * value, the factor folded into the reduction; floating dtypes only. The factor
  /// is this rank's own, rounded to the tensor's dtype.
  std::shared_ptr<Work> all_reduce_scaled(const at::Tensor& tensor, double factor,
                                          std::string_view tag = {});
  std::shared_ptr<Work> reduce_scatter_scaled(const at::Tensor& output, const at::Tensor& input,
                                              double factor, std::string_view tag = {},
                                              int slice = kOwnRank);

  /// Collective. Starts all collectives that `issue` calls on this group at once (ncclGroupStart,
  /// ncclGroupEnd): fewer launches. Their wait() comes after batch() has returned. barrier(),
  /// subgroup() and another batch() are errors in there. What `issue` throws, batch() throws; if it
  /// had called anything before, the world has failed then, as the others wait for the rest.
  void batch(const std::function<void()>& issue);

 private:
  /// What a batch has issued and not launched.
  struct Issued {
    StreamLane* lane;
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<Pending> pending;
  };
  using Launch = std::function<Result(const Api& api, OpaqueComm* comm, void* stream)>;

  std::shared_ptr<Pending> make_pending(Call call, std::shared_ptr<Event> end,
                                        std::vector<at::Tensor> tensors);
  std::shared_ptr<Pending> begin(Call call, std::shared_ptr<Event> end,
                                 std::vector<at::Tensor> tensors);
  std::shared_ptr<Pending> issue(StreamLane& lane, Call call, std::vector<at::Tensor> tensors,
                                 const Launch& launch, int slice = kOwnRank);
  std::shared_ptr<Work> reduce(const at::Tensor& tensor, ReduceOp op, std::optional<double> factor,
                               std::string_view tag);
  std::shared_ptr<Work> scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                std::optional<double> factor, std::string_view tag, int slice);
  std::shared_ptr<Group> split_off(Pending& pending, const std::vector<int>& ranks,
                                   const std::string& group);
  const std::shared_ptr<Communicator>& communicator_for(Pending& pending, int slice);
  void agree_on_slices(Pending& pending, int slice);
  void drain(Pending& pending);
  void launch(const std::vector<Issued>& batch);
  void check_outside_batch(const char* op) const;
  void note_place(Call& call, const at::Tensor& reached, const at::Tensor& other);
  void check_host_gather(const char* op, const at::Tensor& output, const at::Tensor& input) const;

  const int uncaught_at_start_;
  const std::shared_ptr<World> world_;
  const std::shared_ptr<Progress> progress_;
  const int rank_;
  StreamLane gather_;
  StreamLane reduce_;
  std::shared_ptr<Communicator> permuted_;  // on the reduce lane, where slices are no ranks
  std::optional<int> slice_;                // once the ranks have agreed on them
  std::set<std::string, std::less<>> subgroup_names_;
  const std::shared_ptr<ControlChannel> told_;  // all_gather_on_host(); Works may outlive the group
  Memory memory_;
  bool makes_windows_;       // until the first reduction or gather
  ControlChannel compared_;  // calls of which nothing but themselves is told
  at::Tensor token_;         // what barriers reduce
  std::vector<Issued>* open_batch_ = nullptr;
};

/// Collective over all ranks; blocks until they have come. A world of NCCL ranks: the id travels
/// through the store. Throws CommError that names the ranks that do not come within the time-out.
std::shared_ptr<Group> make_world(WorldOptions options);

}  // namespace tessera::nccl
