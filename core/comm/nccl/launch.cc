#include "tessera/core/comm/nccl/launch.h"

#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/op_traits.h"

namespace tessera::internal::nccl {
namespace {

RedOp red_op_of(const Collective& collective) {
  TORCH_CHECK(collective.divisor == 0.0, "[comm] ", to_string(collective.op), " '",
              std::string(collective.tag), "': got divisor ", collective.divisor,
              ", expected 0: NCCL divides by the number of ranks; reduce with SUM and divide "
              "yourself");
  // NCCL knows no bool; of zeros and ones, bytes give the same: see ReduceOp.
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
    default:
      break;  // refused by find_lacking()
  }
  TORCH_INTERNAL_ASSERT(false, to_string(collective.reduce));
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
    default:  // the checks let nothing else pass; int16, which NCCL does not know, moves as bytes
      return DataType::kUint8;
  }
}

/// The elements that NCCL sees for one of the tensor's.
int64_t scale_of(at::ScalarType dtype) { return dtype == at::kShort ? 2 : 1; }

/// Sends and receives that NCCL starts together.
class Transfers {
 public:
  Transfers(const Api& api, at::ScalarType dtype, OpaqueComm* comm, void* stream)
      : api_(api),
        dtype_(dtype_of(dtype)),
        scale_(scale_of(dtype)),
        element_bytes_(static_cast<int64_t>(c10::elementSize(dtype))),
        comm_(comm),
        stream_(stream) {
    api_.group_start();
  }

  /// `numel` elements of `whole` from element `begin` on.
  void send(const at::Tensor& whole, int64_t begin, int64_t numel, int peer) {
    if (numel == 0) return;
    const auto* from = static_cast<const char*>(whole.const_data_ptr()) + begin * element_bytes_;
    note(api_.send(from, static_cast<size_t>(numel * scale_), dtype_, peer, comm_, stream_));
  }
  void receive(const at::Tensor& whole, int64_t begin, int64_t numel, int peer) {
    if (numel == 0) return;
    auto* to = static_cast<char*>(whole.data_ptr()) + begin * element_bytes_;
    note(api_.recv(to, static_cast<size_t>(numel * scale_), dtype_, peer, comm_, stream_));
  }

  Result end() {
    const Result ended = api_.group_end();
    return failure_ == Result::kSuccess ? ended : failure_;
  }

 private:
  void note(Result result) {
    const bool is_well = result == Result::kSuccess || result == Result::kInProgress;
    if (!is_well && failure_ == Result::kSuccess) failure_ = result;
  }

  const Api& api_;
  const DataType dtype_;
  const int64_t scale_;
  const int64_t element_bytes_;
  OpaqueComm* const comm_;
  void* const stream_;
  Result failure_ = Result::kSuccess;
};

bool is_same_place(const at::Tensor& slice, const at::Tensor& whole, int64_t begin) {
  return static_cast<const char*>(slice.const_data_ptr()) ==
         static_cast<const char*>(whole.const_data_ptr()) +
             begin * static_cast<int64_t>(slice.element_size());
}

void gather(Transfers& transfers, const Collective& collective, int rank, int size) {
  const int64_t numel = collective.input.numel();
  const bool is_root = rank == collective.peer;
  const bool is_in_place =
      is_root && is_same_place(collective.input, collective.output, rank * numel);
  if (!is_in_place) transfers.send(collective.input, 0, numel, collective.peer);
  for (int peer = 0; is_root && peer < size; ++peer) {
    if (peer == rank && is_in_place) continue;
    transfers.receive(collective.output, peer * numel, numel, peer);
  }
}

void scatter(Transfers& transfers, const Collective& collective, int rank, int size) {
  const int64_t numel = collective.output.numel();
  const bool is_root = rank == collective.peer;
  const bool is_in_place =
      is_root && is_same_place(collective.output, collective.input, rank * numel);
  if (!is_in_place) transfers.receive(collective.output, 0, numel, collective.peer);
  for (int peer = 0; is_root && peer < size; ++peer) {
    if (peer == rank && is_in_place) continue;
    transfers.send(collective.input, peer * numel, numel, peer);
  }
}

void all_to_all(Transfers& transfers, const Collective& collective, int size) {
  const bool is_even = collective.input_counts.empty();
  const int64_t share = collective.input.numel() / size;
  int64_t sent = 0;
  int64_t received = 0;
  for (int peer = 0; peer < size; ++peer) {
    const int64_t to = is_even ? share : collective.input_counts[peer];
    const int64_t from = is_even ? share : collective.output_counts[peer];
    transfers.send(collective.input, sent, to, peer);
    transfers.receive(collective.output, received, from, peer);
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
  const auto data_of = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.data_ptr() : nullptr;
  };
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
  Transfers transfers(api, dtype, comm, stream);
  switch (collective.op) {
    case Op::kGather:
      gather(transfers, collective, rank, size);
      break;
    case Op::kScatter:
      scatter(transfers, collective, rank, size);
      break;
    case Op::kAllToAll:
      all_to_all(transfers, collective, size);
      break;
    default:
      TORCH_INTERNAL_ASSERT(false, to_string(collective.op));
  }
  return transfers.end();
}

}  // namespace tessera::internal::nccl
