#include "tessera/core/comm/nccl/launch.h"

#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/op_traits.h"

namespace tessera::internal::nccl {
namespace {

RedOp red_op_of(const Collective& collective) {
  TORCH_CHECK(collective.divisor == 0.0, "[comm] ", to_string(collective.op), " '",
              std::string(collective.tag), "': got divisor ", collective.divisor,
              ", expected 0: NCCL divides by the number of ranks; reduce with SUM and divide "
              "yourself");
  // NCCL has no bool, so a bool is reduced as a byte. Bools are 0 or 1, so a maximum is "or" and a
  // minimum is "and", as ReduceOp defines them.
  const bool is_bool = collective.input.scalar_type() == at::kBool;
  switch (collective.reduce) {
    case ReduceOp::kSum:
      return is_bool ? RedOp::kMax : RedOp::kSum;
    case ReduceOp::kProduct:
      return is_bool ? RedOp::kMin : RedOp::kProd;
    case ReduceOp::kAvg:
      return RedOp::kAvg;
    case ReduceOp::kMin:
      return RedOp::kMin;
    case ReduceOp::kMax:
      return RedOp::kMax;
    default:  // find_lacking() refuses it
      TORCH_INTERNAL_ASSERT(false, to_string(collective.reduce));
  }
}

DataType dtype_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kBFloat16:
      return DataType::kBfloat16;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kLong:
      return DataType::kInt64;
    case at::kInt:
      return DataType::kInt32;
    case at::kChar:
      return DataType::kInt8;
    // Bool and uint8. Also int16, which NCCL does not have, so it is moved as bytes. The checks
    // allow no other dtype.
    default:
      return DataType::kUint8;
  }
}

/// Returns how many NCCL elements make up one element of a tensor.
int64_t scale_of(at::ScalarType dtype) { return dtype == at::kShort ? 2 : 1; }

/// Returns the address of element `begin` of the tensor.
char* place_in(const at::Tensor& whole, int64_t begin) {
  return data_of(whole) + begin * static_cast<int64_t>(whole.element_size());
}

/// Calls that NCCL starts together.
class Calls {
 public:
  Calls(const Api& api, OpaqueComm* comm, void* stream) : api_(api), comm_(comm), stream_(stream) {
    api_.group_start();
  }

  /// Sends or receives `numel` elements of `whole` from element `begin` on.
  void move(bool sends, const at::Tensor& whole, int64_t begin, int64_t numel, int peer) {
    if (numel == 0) return;
    const at::ScalarType dtype = whole.scalar_type();
    const auto count = static_cast<size_t>(numel * scale_of(dtype));
    char* const data = place_in(whole, begin);
    add(sends ? api_.send(data, count, dtype_of(dtype), peer, comm_, stream_)
              : api_.recv(data, count, dtype_of(dtype), peer, comm_, stream_));
  }

  /// Notes the result of one call; end() returns the first error.
  void add(Result result) {
    const bool is_well = result == Result::kSuccess || result == Result::kInProgress;
    if (!is_well && failure_ == Result::kSuccess) failure_ = result;
  }
  Result end() {
    const Result ended = api_.group_end();
    return failure_ == Result::kSuccess ? ended : failure_;
  }

 private:
  const Api& api_;
  OpaqueComm* const comm_;
  void* const stream_;
  Result failure_ = Result::kSuccess;
};

/// Moves data between the root's whole tensor and every rank's part. The root's own part is not
/// moved if it lies in the whole tensor already.
void gather_or_scatter(Calls& calls, const Collective& collective, int rank, int size) {
  const bool gathers = collective.op == Op::kGather;
  const at::Tensor& part = gathers ? collective.input : collective.output;
  const at::Tensor& whole = gathers ? collective.output : collective.input;
  const int root = collective.peer;
  const int64_t numel = part.numel();
  const bool is_in_place = rank == root && part.const_data_ptr() == place_in(whole, rank * numel);
  if (!is_in_place) calls.move(/*sends=*/gathers, part, 0, numel, root);
  for (int peer = 0; rank == root && peer < size; ++peer) {
    if (peer == rank && is_in_place) continue;
    calls.move(/*sends=*/!gathers, whole, peer * numel, numel, peer);
  }
}

void all_to_all(Calls& calls, const Collective& collective, int size) {
  const bool is_even = collective.input_counts.empty();
  const int64_t share = collective.input.numel() / size;
  int64_t sent = 0;
  int64_t received = 0;
  for (int peer = 0; peer < size; ++peer) {
    const int64_t to = is_even ? share : collective.input_counts[peer];
    const int64_t from = is_even ? share : collective.output_counts[peer];
    calls.move(/*sends=*/true, collective.input, sent, to, peer);
    calls.move(/*sends=*/false, collective.output, received, from, peer);
    sent += to;
    received += from;
  }
}

}  // namespace

std::string find_lacking(const Collective& collective) {
  if (collective.op == Op::kRecv && collective.peer == kAnySource) return "from any rank";
  if (!traits_of(collective.op).reduces) return "";
  const std::string op(to_string(collective.reduce));
  if (collective.reduce == ReduceOp::kBitAnd || collective.reduce == ReduceOp::kBitOr ||
      collective.reduce == ReduceOp::kBitXor) {
    return op;
  }
  return collective.input.scalar_type() == at::kShort ? op + " of int16" : "";
}

Result launch(const Api& api, const Collective& collective, int rank, int size, OpaqueComm* comm,
              void* stream) {
  const at::Tensor& given = collective.input.defined() ? collective.input : collective.output;
  const at::ScalarType dtype = given.scalar_type();
  const void* const from = data_of(collective.input);
  void* const to = data_of(collective.output);
  const auto numel = static_cast<size_t>(given.numel() * scale_of(dtype));
  const DataType type = dtype_of(dtype);
  switch (collective.op) {
    case Op::kAllReduce:
      return api.all_reduce(from, to, numel, type, red_op_of(collective), comm, stream);
    case Op::kReduceScatter:
      return api.reduce_scatter(from, to, static_cast<size_t>(collective.output.numel()), type,
                                red_op_of(collective), comm, stream);
    case Op::kReduce:
      return api.reduce(from, to, numel, type, red_op_of(collective), collective.peer, comm,
                        stream);
    case Op::kAllGather:
      return api.all_gather(from, to, numel, type, comm, stream);
    case Op::kBroadcast:
      return api.broadcast(from, to, numel, type, collective.peer, comm, stream);
    case Op::kSend:
      return api.send(from, numel, type, collective.peer, comm, stream);
    case Op::kRecv:
      return api.recv(to, numel, type, collective.peer, comm, stream);
    default:
      break;
  }
  Calls calls(api, comm, stream);
  if (collective.op == Op::kAllToAll) {
    all_to_all(calls, collective, size);
  } else {
    gather_or_scatter(calls, collective, rank, size);
  }
  return calls.end();
}

Result launch_messages(const Api& api, const std::vector<Collective>& messages, int rank,
                       OpaqueComm* comm, void* stream) {
  Calls calls(api, comm, stream);
  for (const Collective& message : messages) {
    if (message.peer != rank) calls.add(launch(api, message, rank, 0, comm, stream));
  }
  return calls.end();
}

}  // namespace tessera::internal::nccl
