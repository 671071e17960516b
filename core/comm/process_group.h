#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/shared_buffer.h"
#include "tessera/core/comm/window.h"
#include "tessera/core/comm/work.h"

namespace tessera {

/// kAvg is the sum divided once by the number of ranks; floating dtypes only. kMin and kMax keep
/// NaN.
enum class ReduceOp : uint8_t { kSum, kAvg, kMin, kMax };

std::string_view to_string(ReduceOp op);

/// Ranks that communicate. Every collective is called by every rank of the group in the same order;
/// each call is compared across ranks (op, reduce op, root, dtype, numel, sequence, tag) before it
/// touches data, and a difference raises a CommError that names both calls on every rank.
///
/// Tensors are contiguous, lie at place() and are of fp32, fp64, bf16, fp16, int64, int32 or uint8.
/// Sums run in rank order; bf16 and fp16 are accumulated in fp32 and rounded once. So every rank
/// receives the same bits, and reduce_scatter gives the same bits as the matching slice of
/// all_reduce.
///
/// All collectives return at once or run in the call, as the backend decides; results are valid
/// after Work::wait(). Misuse (shape, dtype, device) throws c10::Error before anything is sent;
/// failure throws CommError, from the call or from wait(), and poisons the group.
///
/// A group is used by one thread at a time. Destroying it is local and never blocks: it marks this
/// rank as having left (later collectives of the others name it); destroyed while an exception
/// unwinds, it poisons the group. A child of fork() is no rank: calls on a group that it inherited
/// throw CommError at once (on GPUs they are undefined), and destroying it tells nobody.
class ProcessGroup {
 public:
  /// For reduce_scatter: the slice with this rank's number.
  static constexpr int kOwnRank = -1;

  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// This process's number in the group, 0 <= rank() < size().
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Unique among the groups of one world; "world" for the outermost.
  virtual std::string_view name() const = 0;
  /// "loopback", "shm" or "nccl".
  virtual std::string_view backend() const = 0;
  /// Whether collectives run beside the caller, so that starting them early overlaps them with what
  /// the caller does; otherwise they run in the call.
  virtual bool runs_in_background() const = 0;
  /// Where the tensors of its collectives lie: the CPU, or this rank's device.
  virtual at::Device place() const { return at::kCPU; }
  /// Whether ranks read each other's memory without the owner taking part, so that make_window()
  /// works. Equal on all ranks.
  virtual bool has_windows() const { return true; }

  /// Combines `tensor` over ranks in place; all ranks receive the result.
  /// `tag` names what is reduced in errors and traces and must be equal on all ranks. All
  /// collectives take one.
  virtual std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op,
                                           std::string_view tag = {}) = 0;

  /// Combines `input` [size() * n] over ranks and leaves slice `slice` in `output` [n]: by default
  /// (kOwnRank) slice rank(). The ranks' slices must be a permutation; two ranks that ask for one
  /// slice are a CommError that names both, on every rank. `output` may be that slice of `input`
  /// itself; then the rest of `input` is left as it was. Sums run in rank order whoever receives
  /// them.
  virtual std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                               ReduceOp op, std::string_view tag = {},
                                               int slice = kOwnRank) = 0;

  /// Concatenates every rank's `input` [n] in rank order into `output` [size() * n]. `input` may be
  /// this rank's own slice of `output` (in place).
  virtual std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                           std::string_view tag = {}) = 0;

  /// Copies `tensor` of rank `root` to every rank.
  virtual std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root,
                                          std::string_view tag = {}) = 0;

  /// Blocks until every rank has called it.
  virtual void barrier(std::string_view tag = {}) = 0;

  /// all_gather() of what ranks tell each other: CPU tensors, wherever place() is, that the host
  /// reads as soon as it returns. Blocks until all ranks' parts are in `output`. Same comparison,
  /// sequence and errors as all_gather(), which it is where that moves host memory; else it goes
  /// by a channel beside the device (nccl: the store), takes milliseconds and is not for gradients.
  virtual void all_gather_on_host(const at::Tensor& output, const at::Tensor& input,
                                  std::string_view tag = {});

  /// As all_gather_on_host(), but returns before the peers have come where there is a channel
  /// beside the device; `output` is complete after Work::wait(), which blocks the host and throws
  /// what all_gather_on_host() would. `input` is copied in the call. Nothing else goes by the
  /// channel in between: one at a time.
  virtual std::shared_ptr<Work> start_gather_on_host(const at::Tensor& output,
                                                     const at::Tensor& input,
                                                     std::string_view tag = {});

  /// Local, except where NcclOptions say otherwise. An uninitialised 1-d tensor at place() in
  /// memory that the backend moves without staging (shared memory for shm; ordinary memory of the
  /// host or the device for loopback, and for GPUs over shm, which stages all); on the host aligned
  /// to a page. Throws c10::Error naming the size if there is no space.
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype) = 0;

  /// Collective; blocks until all ranks have called it. A window over every rank's `own`, which is
  /// contiguous, 1-d, of equal dtype and numel on all ranks (0 is allowed) and lies in memory from
  /// allocate(), as a whole or as a view. The window keeps `own` alive, and peers' memory mapped.
  /// `name` is compared across ranks. Memory of another kind on any rank is a c10::Error on every
  /// rank that names these ranks; the group is as good as before. A group without has_windows()
  /// refuses it: c10::Error.
  virtual std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) = 0;

  /// Collective; blocks until all ranks have called it. `bytes` zero bytes that all ranks have
  /// together, equal on all ranks. Null on every rank where they have no memory in common: in a
  /// world of one, and across hosts or devices; and, with a warning, where the system does not show
  /// one of them its own writes. If there is no space, every rank throws c10::Error that names the
  /// rank and the size; the group is as good as before.
  virtual std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes,
                                                           std::string_view name) = 0;

  /// Collective over this group: a new group of the given ranks of this one (strictly ascending;
  /// rank i of the new group is ranks[i]), with its own sequence of collectives. Every rank of this
  /// group calls it with the same arguments; ranks outside the list receive nullptr. `name` must be
  /// new; the new group is called "<name() of this>/<name>".
  virtual std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                                 std::string_view name) = 0;

  /// Local. Poisons the group and every group made from the same world: all ranks' pending and
  /// later calls throw CommError with `cause`. The first cause wins. Never throws, never blocks.
  virtual void abort(std::string_view cause) noexcept = 0;

 protected:
  ProcessGroup() = default;
};

/// Throws c10::Error unless the tensors of a collective are what ProcessGroup asks for and lie at
/// `place`. Every backend begins with these.
void check_collective_tensor(const char* op, const char* argument, const at::Tensor& tensor,
                             at::Device place);
void check_all_reduce(const at::Tensor& tensor, ReduceOp op, at::Device place);
void check_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, int size,
                          int slice, at::Device place);
void check_all_gather(const at::Tensor& output, const at::Tensor& input, int size,
                      at::Device place);
void check_broadcast(const at::Tensor& tensor, int root, int size, at::Device place);
/// Throws c10::Error if `slice` is a slice of `whole` (of one of the forms the checks above accept)
/// but not slice number `own`.
void check_own_slice(const char* op, const at::Tensor& slice, const at::Tensor& whole, int own);

/// Throws c10::Error unless `ranks` and `name` may make a subgroup of a group of `size` ranks whose
/// earlier subgroups are `names`.
void check_subgroup(const std::vector<int>& ranks, std::string_view name, int size,
                    const std::set<std::string, std::less<>>& names);

/// Throws c10::Error unless allocate(numel, dtype) makes sense; returns the number of bytes.
int64_t check_allocate(int64_t numel, at::ScalarType dtype);

/// A group of all ranks of `group` with a sequence of its own: subgroup() over every rank.
/// Collective.
std::shared_ptr<ProcessGroup> duplicate(ProcessGroup& group, std::string_view name);

/// Collective over `group`, whose rank r has the colour color_of_rank[r]; every rank passes the
/// same. Makes one subgroup per distinct colour, of its ranks in ascending order, called
/// "<name> <colour>", and returns the one of this rank. Throws c10::Error unless there is one
/// colour for each rank.
std::shared_ptr<ProcessGroup> split(ProcessGroup& group, const std::vector<int>& color_of_rank,
                                    std::string_view name);

}  // namespace tessera
