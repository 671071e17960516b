#include "tessera/collective.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/numbers/fp32_factor.h"
#include "tessera/core/numbers/number_text.h"

namespace tessera {
using namespace internal;

namespace {

/// The dtypes that collectives support, and their names in messages.
constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {
    {at::kFloat, "float32"}, {at::kDouble, "float64"}, {at::kBFloat16, "bfloat16"},
    {at::kHalf, "float16"},  {at::kLong, "int64"},     {at::kInt, "int32"},
    {at::kByte, "uint8"},    {at::kShort, "int16"},    {at::kChar, "int8"},
    {at::kBool, "bool"}};

constexpr std::string_view kReduceOps[] = {"SUM",     "AVG",  "MIN", "MAX",
                                           "PRODUCT", "BAND", "BOR", "BXOR"};

constexpr std::string_view kUnknown = "unknown";

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
}

const char* name_of(at::ScalarType dtype) { return c10::toString(dtype); }

/// Checks that the ranks can sum in the order that the call asks for. A tree's order needs a CPU
/// kernel. It also needs a number of ranks that is a power of two, so that the sum over these ranks
/// is a subtree of the sum over more ranks.
void check_order(const char* op, const Collective& call, int size) {
  if (call.order == SumOrder::kRanks) return;
  const at::Tensor& tensor = call.input;
  const bool adds = call.reduce == ReduceOp::kSum || call.reduce == ReduceOp::kAvg;
  const bool is_of_cpu = tensor.device().is_cpu() && (tensor.scalar_type() == at::kFloat ||
                                                      tensor.scalar_type() == at::kDouble);
  TORCH_CHECK(adds && is_of_cpu && std::has_single_bit(static_cast<unsigned>(size)), "[comm] ", op,
              ": got a tree's order of ", std::string(to_string(call.reduce)), " of ",
              name_of(tensor.scalar_type()), " on ", tensor.device(), " over ", size,
              " ranks, expected SUM or AVG of float32 or float64 on cpu over a power of two of"
              " ranks; leave the order out");
}

void check_reduce_op(const char* op, const Collective& call, int size) {
  TORCH_CHECK(to_string(call.reduce) != kUnknown, "[comm] ", op, ": got reduce operation ",
              static_cast<int>(call.reduce), ", expected one of ReduceOp; correct it");
  check_order(op, call, size);
  const at::ScalarType dtype = call.input.scalar_type();
  TORCH_CHECK(call.reduce != ReduceOp::kAvg || at::isFloatingType(dtype), "[comm] ", op,
              ": got AVG of ", name_of(dtype),
              ", expected a floating dtype; reduce with SUM and divide yourself");
  TORCH_CHECK(!is_bitwise(call.reduce) || !at::isFloatingType(dtype), "[comm] ", op, ": got ",
              std::string(to_string(call.reduce)), " of ", name_of(dtype),
              ", expected integers or bool; view the tensor as integers");
  if (call.divisor == 0.0) return;
  TORCH_CHECK(call.reduce == ReduceOp::kAvg && is_fp32_factor(call.divisor), "[comm] ", op,
              ": got divisor ", number_text(call.divisor), " of ",
              std::string(to_string(call.reduce)),
              ", expected AVG over 1.2e-38 to 3.4e38, or 0 for the number of ranks");
}

/// Checks that memory holds the tensor's values. If a tensor is lazily negated or zero, memory
/// holds other values than operators see. If its storage was freed, the tensor still has its sizes,
/// so the size of the storage is compared with them.
void check_memory(const char* op, const char* argument, const at::Tensor& tensor) {
  TORCH_CHECK(
      !tensor.is_neg() && !tensor._is_zerotensor(), "[comm] ", op, ": got ", argument,
      " that is negated, or zero, lazily, expected its values in memory; call clone() first");
  const auto needed = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size() +
                      static_cast<size_t>(tensor.nbytes());
  const size_t there = tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
  TORCH_CHECK(tensor.numel() == 0 || (needed <= there && tensor.const_data_ptr() != nullptr),
              "[comm] ", op, ": got ", argument, " of ", needed, " bytes whose storage has ", there,
              ", expected its memory; it has been freed, fill or gather it first");
}

/// An argument of a call, and its name.
struct Argument {
  const char* name;
  const at::Tensor& tensor;
};

void check_same_dtype(const char* op, Argument one, Argument other) {
  TORCH_CHECK(one.tensor.scalar_type() == other.tensor.scalar_type(), "[comm] ", op, ": got ",
              one.name, " of ", name_of(one.tensor.scalar_type()), " and ", other.name, " of ",
              name_of(other.tensor.scalar_type()),
              ", expected one dtype; convert one of them first");
}

/// Checks the tensors of a gather or a scatter. Each rank has one slice; every rank, or only the
/// root, has the whole tensor. If this rank has it (`has_whole`), the memory of `slice` must either
/// be that of slice `own` of the whole tensor or not overlap the whole tensor.
void check_slice(const char* op, Argument slice, Argument whole, bool has_whole, int own, int size,
                 at::Device device) {
  check_collective_tensor(op, slice.name, slice.tensor, device);
  if (!has_whole) return;
  check_collective_tensor(op, whole.name, whole.tensor, device);
  check_same_dtype(op, whole, slice);
  const int64_t numel = slice.tensor.numel();
  TORCH_CHECK(whole.tensor.numel() == numel * size, "[comm] ", op, ": got ", whole.name, " of ",
              whole.tensor.numel(), " and ", slice.name, " of ", numel, " elements on ", size,
              " ranks, expected ", whole.name, " of ", numel * size,
              "; give every rank as many elements, and pad the whole");
  TORCH_CHECK(own >= 0 && own < size, "[comm] ", op, ": got slice ", own, ", expected 0 to ",
              size - 1, ", or kOwnRank; the input has one slice for each rank");
  if (numel == 0 || !share_memory(slice.tensor, whole.tensor)) return;
  const auto offset = data_of(slice.tensor) - data_of(whole.tensor);
  TORCH_CHECK(offset == own * static_cast<std::ptrdiff_t>(slice.tensor.nbytes()), "[comm] ", op,
              ": got ", slice.name, " that overlaps ", whole.name, " at byte ", offset,
              " of the whole, expected slice ", own,
              " of it, which is this rank's, or memory apart; use one of them");
}

void check_counts(const char* op, const char* argument, const std::vector<int64_t>& counts,
                  const at::Tensor& tensor, int size) {
  int64_t sum = 0;
  bool are_valid = static_cast<int>(counts.size()) == size;
  for (const int64_t count : counts) {
    are_valid = are_valid && count >= 0 && count <= tensor.numel() - sum;
    sum += count;
  }
  TORCH_CHECK(are_valid && sum == tensor.numel(), "[comm] ", op, ": got ", argument, " [",
              absl::StrJoin(counts, ", "), "] of a tensor of ", tensor.numel(), " elements on ",
              size,
              " ranks, expected one count of 0 or more for each rank and all elements in them"
              "; correct them");
}

void check_all_to_all(const Collective& call, int size, at::Device device) {
  const char* const op = "all_to_all";
  check_collective_tensor(op, "output", call.output, device);
  check_collective_tensor(op, "input", call.input, device);
  check_same_dtype(op, {"output", call.output}, {"input", call.input});
  if (call.input_counts.empty() && call.output_counts.empty()) {
    const int64_t numel = call.input.numel();
    TORCH_CHECK(call.output.numel() == numel && numel % size == 0, "[comm] ", op,
                ": got output of ", call.output.numel(), " and input of ", numel, " elements on ",
                size, " ranks, expected equal sizes that the ranks divide; give counts");
  } else {
    check_counts(op, "input_counts", call.input_counts, call.input, size);
    check_counts(op, "output_counts", call.output_counts, call.output, size);
  }
  const bool are_empty = call.output.numel() == 0 || call.input.numel() == 0;
  TORCH_CHECK(are_empty || !share_memory(call.output, call.input), "[comm] ", op,
              ": got output that overlaps input, expected memory apart; allocate it");
}

void check_message(const char* op, const Collective& call, int size, at::Device device) {
  check_collective_tensor(op, "tensor", call.output, device);
  const bool is_any = call.op == Op::kRecv && call.peer == kAnySource;
  TORCH_CHECK(is_any || (call.peer >= 0 && call.peer < size), "[comm] ", op, ": got rank ",
              call.peer, ", expected 0 to ", size - 1,
              call.op == Op::kRecv ? ", or kAnySource" : "",
              "; ranks are numbered within the group");
}

}  // namespace

const char* to_string(Op op) { return traits_of(op).name; }

const char* dtype_name(c10::ScalarType dtype) {
  const auto* const found = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                         [&](const auto& known) { return known.first == dtype; });
  return found == std::end(kDtypes) ? kUnknown.data() : found->second;
}

std::string_view to_string(ReduceOp op) {
  const auto index = static_cast<size_t>(op);
  return index < std::size(kReduceOps) ? kReduceOps[index] : kUnknown;
}

void check_collective_tensor(const char* op, const char* argument, const at::Tensor& tensor,
                             at::Device torch_device) {
  TORCH_CHECK(tensor.defined(), "[comm] ", op, ": got an undefined ", argument,
              ", expected a contiguous tensor on ", torch_device, "; allocate it first");
  const at::Device device = tensor.device();
  TORCH_CHECK(device == torch_device || (device.is_cpu() && torch_device.is_cpu()), "[comm] ", op,
              ": got ", argument, " on ", device, ", expected it on ", torch_device,
              ", where this rank's tensors of the group lie; move it there first");
  TORCH_CHECK(tensor.layout() == at::kStrided, "[comm] ", op, ": got ", argument, " of layout ",
              tensor.layout(), ", expected a strided tensor; call to_dense() first");
  TORCH_CHECK(dtype_name(tensor.scalar_type()) != kUnknown, "[comm] ", op, ": got ", argument,
              " of ", name_of(tensor.scalar_type()),
              ", expected float32, float64, bfloat16, float16, int64, int32, int16, int8, uint8 or "
              "bool; convert it first");
  TORCH_CHECK(tensor.is_contiguous(), "[comm] ", op, ": got a non-contiguous ", argument,
              " of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
              ", expected a contiguous one; call contiguous() first");
  check_memory(op, argument, tensor);
}

CallSignature Collective::signature() const {
  CallSignature signature{
      .op = op, .reduce = reduce, .order = order, .peer = peer, .divisor = divisor};
  const at::Tensor& tensor = op == Op::kScatter ? output : input;  // the tensor that every rank has
  if (!tensor.defined()) return signature;
  signature.dtype = tensor.scalar_type();
  signature.numel = input_counts.empty() ? tensor.numel() : CallSignature::kVaries;
  return signature;
}

std::string describe(const CallSignature& call, std::string_view tag) {
  const OpTraits traits = traits_of(call.op);
  std::string text = traits.name;
  if (traits.reduces) absl::StrAppend(&text, " ", std::string(to_string(call.reduce)));
  if (call.divisor != 0.0) absl::StrAppend(&text, " over ", number_text(call.divisor));
  if (call.order == SumOrder::kBinaryTree) absl::StrAppend(&text, " in a tree's order");
  if (call.numel >= 0) {
    absl::StrAppend(&text, " ", dtype_name(call.dtype), "[", call.numel, "]");
  } else if (call.numel == CallSignature::kVaries) {
    absl::StrAppend(&text, " ", dtype_name(call.dtype), " by counts");
  }
  if (call.peer >= 0) {
    const bool root_takes = traits.root == OpTraits::Root::kTakes;
    absl::StrAppend(&text, root_takes ? " to rank " : " from rank ", call.peer);
  } else if (call.peer == kAnySource) {
    absl::StrAppend(&text, " from any rank");
  }
  return absl::StrCat(text, " '", std::string(tag), "'");
}

void check(const Collective& collective, int rank, int size, at::Device device) {
  const OpTraits traits = traits_of(collective.op);
  const at::Device place = traits.is_on_host ? at::Device(at::kCPU) : device;
  const bool has_root = traits.root != OpTraits::Root::kNone;
  TORCH_CHECK(!has_root || traits.tensors == OpTraits::Tensors::kMessage ||
                  (collective.peer >= 0 && collective.peer < size),
              "[comm] ", traits.name, ": got root ", collective.peer, ", expected 0 to ", size - 1,
              "; roots are numbered within the group");
  const bool is_whole_here = !has_root || rank == collective.peer;
  const Argument output{"output", collective.output};
  const Argument input{"input", collective.input};
  switch (traits.tensors) {
    case OpTraits::Tensors::kNone:
      return;
    case OpTraits::Tensors::kScatter:
      check_slice(traits.name, output, input, is_whole_here, collective.slice, size, place);
      break;
    case OpTraits::Tensors::kGather:
      check_slice(traits.name, input, output, is_whole_here, rank, size, place);
      break;
    case OpTraits::Tensors::kExchange:
      return check_all_to_all(collective, size, place);
    case OpTraits::Tensors::kMessage:
      return check_message(traits.name, collective, size, place);
    case OpTraits::Tensors::kInPlace:
      check_collective_tensor(traits.name, "tensor", collective.input, place);
      break;
  }
  if (traits.reduces) check_reduce_op(traits.name, collective, size);
}

}  // namespace tessera
