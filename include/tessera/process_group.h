#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/collective.h"
#include "tessera/shared_buffer.h"
#include "tessera/window.h"
#include "tessera/work.h"

namespace tessera {

/// What a group can do; equal on all its ranks. Code checks this and never a backend's name.
struct Capabilities {
  /// True if collectives run in the background, beside what the caller does after it has started
  /// them; false if they run inside the call.
  bool in_background = false;
  /// True if Work::wait() blocks the host until results are valid, and is_completed() says whether
  /// they are (tensors on the CPU). False if results are produced on a stream of the device, and
  /// are valid only for work that is queued there after wait().
  bool completes_on_host = true;
  /// True if ProcessGroup::all_gather_on_host() uses a channel of its own, beside the group's
  /// collectives.
  bool has_host_channel = false;
  /// True if ranks read each other's memory without its owner taking part: then make_window()
  /// works.
  bool one_sided_reads = false;
  /// True if data may cross a network. That is slower than memory, but it carries data while ranks
  /// compute.
  bool crosses_network = false;
  /// True if collectives take SumOrder::kBinaryTree, for the dtypes and numbers of ranks that it
  /// allows.
  bool tree_sums = true;
};

/// Ranks that communicate. Every collective is called by every rank of the group in the same order;
/// each call is compared across ranks (op, reduce op, order, divisor, root, dtype, numel, sequence,
/// tag). If calls differ, every rank throws a CommError, which names two calls that differ, before
/// data is touched. Over NCCL the error comes at the time-out, and only if the difference makes
/// NCCL hang.
///
/// Tensors are contiguous, lie at device() and are of fp32, fp64, bf16, fp16, int64, int32, int16,
/// int8, uint8 or bool. Sums and products run in rank order, or as SumOrder says; bf16 and fp16 are
/// accumulated in fp32 and rounded once. So every rank receives the same bits, and reduce_scatter
/// gives the same bits as the matching slice of all_reduce. Backend "hosts" sums over the ranks of
/// each host in rank order, then over the hosts in order, and rounds bf16 and fp16 once in each of
/// these two sums. Over NCCL the order and the rounding are NCCL's, and none of this is promised.
/// If a backend lacks an operation, a ReduceOp or a dtype, every rank throws a c10::Error that
/// names it and the backend, before anything is sent.
///
/// Messages (send, recv, isend, irecv) concern two ranks only and take no number in the sequence of
/// collectives. A message matches a receive if the receive names the message's sender (or
/// kAnySource) and an equal tag; if several fit, they match in order. dtype and numel must be
/// equal; if they differ, both ranks throw a CommError, which names both calls, and the group is
/// poisoned. A send of up to kBufferedBytes waits for no receiver; a larger one completes when the
/// receiver has it, as every message does over NCCL. A message that nobody has received is lost
/// when its sender destroys the group. For NCCL's differences see batch_isend_irecv().
///
/// All collectives return at once or run in the call, as the backend decides; results are valid
/// after Work::wait(). Misuse (shape, dtype, device) throws c10::Error before anything is sent;
/// failure throws CommError, from the call or from wait(), and poisons the group (over NCCL, all
/// groups of its world): every later call on it, on every rank, throws the same cause.
///
/// A group is used by one thread at a time. Destroying it is local and waits for no rank. Wait for
/// its calls first, because a call that is under way may fail, here and on other ranks. Destroying
/// it marks this rank as having left, so that the errors of calls that need this rank name this
/// rank. Destroying it during stack unwinding poisons the world. A child of fork() is not a rank:
/// calls on an inherited group throw CommError at once (on GPUs they are undefined), and destroying
/// it has no effect on others.
class ProcessGroup {
 public:
  /// A value of reduce_scatter()'s argument `slice`: the slice with this rank's number.
  static constexpr int kOwnRank = -1;
  /// The largest message, in bytes, whose sender does not wait for the receiver.
  static constexpr int64_t kBufferedBytes = int64_t{64} << 10;

  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// Returns this process's number in the group, 0 <= rank() < size().
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns the group's name: unique among the groups of one world; "world" for the outermost.
  virtual std::string_view name() const = 0;
  /// Returns "loopback", "shm", "nccl", "mpi" or "hosts".
  virtual std::string_view backend() const = 0;
  virtual Capabilities can() const = 0;
  /// Returns the device on which tensors of collectives must lie: the CPU, or a GPU that this rank
  /// uses.
  virtual at::Device device() const { return at::kCPU; }

  /// Combines the ranks' `tensor`s; the result replaces `tensor` on all ranks. `tag`, which all
  /// collectives take, names the data in errors and traces. `divisor` and `order` are as in
  /// Collective. All three must be equal on all ranks.
  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view tag = {},
                                   double divisor = 0.0, SumOrder order = SumOrder::kRanks) {
    return check_and_run({.op = Op::kAllReduce,
                          .output = tensor,
                          .input = tensor,
                          .reduce = op,
                          .divisor = divisor,
                          .order = order,
                          .tag = tag});
  }

  /// Combines `input` [size() * n] over ranks and stores slice `slice` in `output` [n]: by default
  /// (kOwnRank) slice rank(). The ranks' slices must be a permutation; if two ranks ask for the
  /// same slice, every rank throws CommError that names both. Over NCCL all reduce_scatters of a
  /// group must use the slices of the group's first reduce_scatter; other slices throw CommError.
  /// `output` may be that slice of `input` itself; the rest of `input` is not changed. A sum has
  /// the same bits whichever rank receives it.
  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       ReduceOp op, std::string_view tag = {}, int slice = kOwnRank,
                                       double divisor = 0.0, SumOrder order = SumOrder::kRanks) {
    return check_and_run({.op = Op::kReduceScatter,
                          .output = output,
                          .input = input,
                          .reduce = op,
                          .divisor = divisor,
                          .order = order,
                          .slice = slice == kOwnRank ? rank() : slice,
                          .tag = tag});
  }

  /// Concatenates every rank's `input` [n] in rank order into `output` [size() * n]. `input` may be
  /// this rank's own slice of `output` (in place).
  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag = {}) {
    return check_and_run({.op = Op::kAllGather, .output = output, .input = input, .tag = tag});
  }

  /// Copies `tensor` of rank `root` to every rank.
  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, std::string_view tag = {}) {
    return check_and_run(
        {.op = Op::kBroadcast, .output = tensor, .input = tensor, .peer = root, .tag = tag});
  }

  /// Reduces `tensor` over ranks into the tensor of rank `root`, in place, with the bits of
  /// all_reduce(). The tensors of the other ranks do not change.
  std::shared_ptr<Work> reduce(const at::Tensor& tensor, ReduceOp op, int root,
                               std::string_view tag = {}) {
    return check_and_run({.op = Op::kReduce,
                          .output = tensor,
                          .input = tensor,
                          .reduce = op,
                          .peer = root,
                          .tag = tag});
  }

  /// Concatenates every rank's `input` [n] in rank order into `output` [size() * n] of rank `root`.
  /// On rank `root`, `input` may be its own slice of `output`. On other ranks `output` may be
  /// undefined and is not used.
  std::shared_ptr<Work> gather(const at::Tensor& output, const at::Tensor& input, int root,
                               std::string_view tag = {}) {
    return check_and_run({.op = Op::kGather,
                          .output = rank() == root ? output : at::Tensor(),
                          .input = input,
                          .peer = root,
                          .tag = tag});
  }

  /// Stores slice r of the root's `input` [size() * n] in `output` [n] of rank r. On rank `root`,
  /// `output` may be its own slice of `input`. On other ranks `input` may be undefined and is not
  /// used.
  std::shared_ptr<Work> scatter(const at::Tensor& output, const at::Tensor& input, int root,
                                std::string_view tag = {}) {
    return check_and_run({.op = Op::kScatter,
                          .output = output,
                          .input = rank() == root ? input : at::Tensor(),
                          .peer = root,
                          .slice = rank(),
                          .tag = tag});
  }

  /// Slice r of `input` goes to rank r; slice r of `output` comes from rank r. Both have size()
  /// equal slices and must not overlap.
  std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag = {}) {
    return all_to_all(output, input, {}, {}, tag);
  }

  /// The same, but sends `input_counts[r]` elements to rank r and receives `output_counts[r]`
  /// elements from rank r; both tensors hold the ranks' elements in rank order. Either all ranks
  /// pass counts or none does. If a rank sends another count than its peer expects, CommError names
  /// both ranks; over NCCL the behaviour is undefined.
  std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                   const std::vector<int64_t>& input_counts,
                                   const std::vector<int64_t>& output_counts,
                                   std::string_view tag = {}) {
    return check_and_run({.op = Op::kAllToAll,
                          .output = output,
                          .input = input,
                          .input_counts = input_counts,
                          .output_counts = output_counts,
                          .tag = tag});
  }

  /// Each of these four runs its collective once for several tensors of one dtype, in a buffer that
  /// is allocated for it. Meant for tensors that are too small to have a collective each.
  /// outputs[i] belongs to inputs[i]. The number and the sizes of the tensors are compared, too.
  /// Results are in the tensors after Work::wait(). Does nothing if there are no tensors.
  std::shared_ptr<Work> all_reduce_coalesced(const std::vector<at::Tensor>& tensors, ReduceOp op,
                                             std::string_view tag = {}, double divisor = 0.0);
  std::shared_ptr<Work> broadcast_coalesced(const std::vector<at::Tensor>& tensors, int root,
                                            std::string_view tag = {});
  std::shared_ptr<Work> all_gather_coalesced(const std::vector<at::Tensor>& outputs,
                                             const std::vector<at::Tensor>& inputs,
                                             std::string_view tag = {});
  std::shared_ptr<Work> reduce_scatter_coalesced(const std::vector<at::Tensor>& outputs,
                                                 const std::vector<at::Tensor>& inputs, ReduceOp op,
                                                 std::string_view tag = {}, double divisor = 0.0);

  /// Exchange objects as bytes, of any size, which may differ between ranks. Collective, blocking;
  /// for set-up, not for the training loop: each call runs two collectives (all_gather_bytes() only
  /// one if all objects are empty) and allocates memory. broadcast_bytes() gives rank `root`'s
  /// bytes to all ranks. all_gather_bytes() returns every rank's bytes, by rank, on all ranks;
  /// gather_bytes() returns them on the root, and nothing on other ranks. scatter_bytes() returns
  /// the root's `bytes`[r] on rank r; other ranks pass no bytes.
  void broadcast_bytes(std::string& bytes, int root, std::string_view tag = {});
  std::vector<std::string> all_gather_bytes(std::string_view bytes, std::string_view tag = {});
  std::vector<std::string> gather_bytes(std::string_view bytes, int root,
                                        std::string_view tag = {});
  std::string scatter_bytes(const std::vector<std::string>& bytes, int root,
                            std::string_view tag = {});

  /// Sends `tensor` to rank `to` and blocks until `tensor` may be changed again. A send to this
  /// rank itself copies the data and never waits.
  void send(const at::Tensor& tensor, int to, std::string_view tag = {}) {
    isend(tensor, to, tag)->wait();
  }

  /// Blocks until a message from rank `from` (kAnySource: the first from any rank) is in `tensor`.
  /// Returns the rank that it came from.
  int recv(const at::Tensor& tensor, int from, std::string_view tag = {}) {
    const std::shared_ptr<Work> work = irecv(tensor, from, tag);
    work->wait();
    return work->source();
  }

  /// Local, does not block. `tensor` must not change until Work::wait() has returned.
  std::shared_ptr<Work> isend(const at::Tensor& tensor, int to, std::string_view tag = {}) {
    return check_and_run(
        {.op = Op::kSend, .output = tensor, .input = tensor, .peer = to, .tag = tag});
  }

  /// Local, does not block. Several receives may complete in any order, also while this rank does
  /// something else. Work::source() gives the sender's rank. nccl lacks kAnySource.
  std::shared_ptr<Work> irecv(const at::Tensor& tensor, int from, std::string_view tag = {}) {
    return check_and_run(
        {.op = Op::kRecv, .output = tensor, .input = tensor, .peer = from, .tag = tag});
  }

  /// Local. Starts isend() or irecv() for all `messages` together, in this order. They cannot
  /// deadlock, whatever the order on either side. Over NCCL, messages that are not in a batch run
  /// one at a time, as do the group's gathers and broadcasts, in the order of the calls. So ranks
  /// that send to each other need a batch. Over NCCL messages between two ranks match in the order
  /// of the calls, and tags, dtypes and sizes that differ are reported at the time-out, if at all.
  std::vector<std::shared_ptr<Work>> batch_isend_irecv(const std::vector<Message>& messages);

  /// Blocks until every rank has called it.
  void barrier(std::string_view tag = {}) {
    check_and_run({.op = Op::kBarrier, .tag = tag})->wait();
  }

  /// all_gather() of control data, which the host reads when the call returns. The tensors lie on
  /// the CPU, even if device() is a GPU. Blocks until all ranks' parts are in `output`. It takes a
  /// number in the group's sequence and throws the errors of all_gather(), and calls are compared
  /// at once, over NCCL too. It runs all_gather() unless the group has a host channel
  /// (Capabilities::has_host_channel). Over NCCL that channel is the store, which takes
  /// milliseconds and is not meant for gradients.
  void all_gather_on_host(const at::Tensor& output, const at::Tensor& input,
                          std::string_view tag = {}) {
    start_gather_on_host(output, input, tag)->wait();
  }

  /// Like all_gather_on_host(), but if the group has a host channel, returns without waiting for
  /// the peers. `output` is complete after Work::wait(), which blocks the calling thread and throws
  /// what all_gather_on_host() would. `input` is copied in the call. Only one such call may be in
  /// flight.
  std::shared_ptr<Work> start_gather_on_host(const at::Tensor& output, const at::Tensor& input,
                                             std::string_view tag = {});

  /// Checks `collective` and takes part in it. The calls above do the same.
  std::shared_ptr<Work> check_and_run(const Collective& collective);

  /// Takes part in one collective. The calls above check their arguments and call it. Call it
  /// directly only from a ProcessGroup that wraps another one and forwards its collectives.
  virtual std::shared_ptr<Work> run(const Collective& collective) = 0;

  /// Like run(), for all messages of a batch. The default implementation starts them one after the
  /// other.
  virtual std::vector<std::shared_ptr<Work>> run_batch(const std::vector<Collective>& messages);

  /// Local, except where NcclOptions say otherwise. Returns an uninitialised 1-d tensor at
  /// device(), in memory from which the backend sends, and into which it receives, without a
  /// staging copy: shared memory for shm on CPUs. For loopback it is ordinary memory of the host or
  /// the device. For GPUs over shm it is ordinary memory of the device, because all data is staged
  /// through the host. Host memory is aligned to a page. Throws c10::Error naming the size if there
  /// is no space.
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype) = 0;

  /// Collective; blocks until all ranks have called it. Returns a window over every rank's `own`,
  /// which must be contiguous, 1-d and of equal dtype and numel on all ranks (a numel of 0 is
  /// allowed). It must lie in memory from allocate(), as a whole or as a view; over mpi it may lie
  /// anywhere. The window keeps `own` alive, and peers' memory mapped. `name` is compared across
  /// ranks. If `own` is not from allocate() on some ranks, every rank throws c10::Error that names
  /// them, and the group stays usable. A group without Capabilities::one_sided_reads throws
  /// c10::Error.
  virtual std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name);

  /// Collective; blocks until all ranks have called it. Returns a buffer of `bytes` zero bytes that
  /// all ranks share; `bytes` must be equal on all ranks. Returns null on every rank where ranks
  /// cannot share memory: in a world of one, and across hosts or devices; and, with a warning,
  /// where the system does not show to a rank which pages it has written. If there is no space,
  /// every rank throws c10::Error that names the rank and the size, and the group stays usable.
  virtual std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name);

  /// Collective over this group. Makes a new group of the given ranks of this one (strictly
  /// ascending; rank i of the new group is ranks[i]), with its own sequence of collectives. Every
  /// rank of this group calls it with the same arguments; ranks outside the list receive nullptr.
  /// No earlier subgroup of this group may have this `name`, which has no '/' and no control
  /// characters; the new group is called "<name() of this>/<name>".
  virtual std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                                 std::string_view name) = 0;

  /// Local. Poisons the group and every group made from the same world: all ranks' pending and
  /// later calls throw CommError with `cause`. Only the first cause counts. Never throws or blocks.
  virtual void abort(std::string_view cause) noexcept = 0;

 protected:
  ProcessGroup() = default;

  /// For run() of a backend that lacks an operation: throws c10::Error that names it and the
  /// backend. If the backend lacks only a part of the operation, `detail` names it: a ReduceOp, a
  /// dtype.
  [[noreturn]] void refuse(const Collective& collective, std::string_view detail = {}) const;
};

/// Throws c10::Error unless a subgroup of `ranks`, called `name`, may be made of a group of `size`
/// ranks. `names`: the names of the group's earlier subgroups.
void check_subgroup(const std::vector<int>& ranks, std::string_view name, int size,
                    const std::set<std::string, std::less<>>& names);

/// Throws c10::Error unless allocate(numel, dtype) makes sense; returns the number of bytes.
int64_t check_allocate(int64_t numel, at::ScalarType dtype);

/// Collective. Returns a group of all ranks of `group` with a sequence of its own: subgroup() over
/// every rank.
std::shared_ptr<ProcessGroup> duplicate(ProcessGroup& group, std::string_view name);

/// Collective over `group`; every rank passes the same arguments. Rank r has the colour
/// color_of_rank[r]. For each colour, makes one subgroup of the ranks that have it, in ascending
/// order, called "<name> <colour>". Returns this rank's subgroup. Throws c10::Error unless there is
/// one colour for each rank.
std::shared_ptr<ProcessGroup> split(ProcessGroup& group, const std::vector<int>& color_of_rank,
                                    std::string_view name);

}  // namespace tessera
