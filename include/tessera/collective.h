#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera {

class Work;

/// What a call on a group does: a collective, or one of the two halves of a message between two
/// ranks.
enum class Op : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
  kHostGather,  ///< ProcessGroup::all_gather_on_host(), where the group has a separate channel for
                ///< that call (Capabilities::has_host_channel); elsewhere the call is a kAllGather
  kSubgroup,
  kMakeWindow,
  kSharedBuffer,
  kInit,
  kAllocate,
};

/// Returns the name of `op`: "all_reduce", "make_window", ...
const char* to_string(Op op);

/// How a reduction combines the ranks' values. kAvg is the sum, divided once by Collective::divisor
/// or, if that is 0, by the number of ranks; it takes floating dtypes only. Backend "hosts" divides
/// each host's sum of bf16 or fp16 before it rounds it, to avoid overflow. kMin and kMax keep NaN,
/// but may lose it over NCCL. kProduct multiplies in rank order as kSum adds. The bit-wise
/// operations take integers and bool; backend nccl lacks them. For bool, kSum and kMax are "or",
/// kProduct and kMin are "and".
enum class ReduceOp : uint8_t { kSum, kAvg, kMin, kMax, kProduct, kBitAnd, kBitOr, kBitXor };

/// Values of Collective::peer and CallSignature::peer that are not ranks. kNoPeer: the call has no
/// root and no other rank.
inline constexpr int kNoPeer = -1;
inline constexpr int kAnySource = -2;  ///< in a receive: the first message from any rank

std::string_view to_string(ReduceOp op);

/// In which order a sum adds the ranks' contributions.
enum class SumOrder : uint8_t {
  kRanks,       ///< rank order: ((0 + 1) + 2) + 3
  kBinaryTree,  ///< a complete binary tree: (0 + 1) + (2 + 3). For sums of fp32 and fp64 on CPUs,
                ///< over 2^n ranks
};

/// Returns the name of a dtype that collectives take, as used in messages: "float32", "int64", ...;
/// "unknown" for other dtypes.
const char* dtype_name(at::ScalarType dtype);

/// The properties of a call, besides the tag, that must be equal on all ranks. Trivially copyable,
/// because ranks of one host write it to shared memory.
struct CallSignature {
  Op op = Op::kInit;
  ReduceOp reduce = ReduceOp::kSum;
  SumOrder order = SumOrder::kRanks;
  at::ScalarType dtype = at::kByte;
  /// The root of a collective; for a message the other rank, or kAnySource; otherwise kNoPeer.
  int32_t peer = kNoPeer;
  int64_t numel = -1;  ///< -1 where no tensor takes part; kVaries where it may differ between ranks
  double divisor = 0.0;

  static constexpr int64_t kVaries = -2;  ///< the numel of an all_to_all with counts

  friend bool operator==(const CallSignature&, const CallSignature&) = default;
};

/// Returns text such as "all_reduce SUM float32[1024] 'bucket 3'".
std::string describe(const CallSignature& call, std::string_view tag);

/// One rank's part in a collective or a message, as a value. Made and checked by the calls of
/// ProcessGroup.
struct Collective {
  Op op = Op::kBarrier;
  /// The tensor that is written; undefined where no tensor takes part, and on ranks of a gather
  /// other than the root.
  at::Tensor output = {};
  /// The tensor that is read. For operations in place and for messages it is `output` itself. It is
  /// undefined where no tensor takes part, and on ranks of a scatter other than the root.
  at::Tensor input = {};
  ReduceOp reduce = ReduceOp::kSum;
  /// The divisor of kAvg, applied in the precision in which sums are accumulated; 0: the number of
  /// ranks. NCCL takes 0 only.
  double divisor = 0.0;
  SumOrder order = SumOrder::kRanks;
  /// The root of a broadcast, reduce, gather or scatter; the destination of a send; the source of a
  /// receive, which may be kAnySource.
  int peer = kNoPeer;
  int slice = -1;  ///< which slice of a (reduce_)scatter's input comes to this rank
  /// If true, the call may return before the collective has run, even on a backend that runs
  /// collectives inside the calls. The collective then makes progress while this rank is in
  /// Work::wait() or is_completed() (for this collective or another one) or waits in another call.
  /// Only affects all_reduce, reduce_scatter and all_gather on memory from
  /// ProcessGroup::allocate(). Equal on all ranks.
  bool posted = false;
  /// For collectives: a collective of another group of this world whose result this collective
  /// uses. On this rank, this collective starts by itself when `after` has finished, and fails if
  /// `after` fails. Null on all ranks or on none.
  std::shared_ptr<Work> after = {};
  /// For all_to_all: how many elements go to and come from each rank; empty: equal slices.
  std::vector<int64_t> input_counts = {};
  std::vector<int64_t> output_counts = {};
  /// Names the call in errors and traces. Need not outlive the call.
  std::string_view tag = {};

  CallSignature signature() const;
};

/// One message of ProcessGroup::batch_isend_irecv(): kSend sends `tensor` to rank `peer`, kRecv
/// receives it from `peer`.
struct Message {
  Op op = Op::kSend;
  at::Tensor tensor;
  int peer = kNoPeer;
  std::string_view tag = {};
};

/// Throws c10::Error unless `collective` is a valid call for rank `rank` of a group of `size` ranks
/// whose tensors must lie at `device`.
void check(const Collective& collective, int rank, int size, at::Device device);

/// Throws c10::Error unless `tensor` is of a form and a dtype that collectives take and lies at
/// `device`.
void check_collective_tensor(const char* op, const char* argument, const at::Tensor& tensor,
                             at::Device device);

}  // namespace tessera
