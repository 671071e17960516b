#include "tessera/collective.h"

#include <bit>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/numbers/fp32_factor.h"
#include "tessera/core/numbers/number_text.h"

namespace tessera {
using namespace internal;

namespace {

constexpr const char* kDtypes = "float32, float64, bfloat16, float16, int64, int32 or uint8";

constexpr std::string_view kUnsupported = "unknown";

bool is_supported(at::ScalarType dtype) { return dtype_name(dtype) != kUnsupported; }

const char* name_of(at::ScalarType dtype) { return c10::toString(dtype); }

/// What adds in a tree: the kernels of the CPU, whose result then composes to sums of more ranks.
void check_order(const char* op, const Collective& call, int size) {
  if (call.order == SumOrder::kRanks) return;
  const at::Tensor& tensor = call.input;
  TORCH_CHECK(call.reduce == ReduceOp::kSum || call.reduce == ReduceOp::kAvg, "[comm] ", op,
              ": got a tree's order beside ", std::string(to_string(call.reduce)),
              ", expected SUM or AVG; leave the order out");
  TORCH_CHECK((tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble) &&
                  tensor.device().is_cpu(),
              "[comm] ", op, ": got a tree's order of ", name_of(tensor.scalar_type()), " on ",
              tensor.device(),
              ", expected float32 or float64 on cpu; convert it first, or leave the order out");
  TORCH_CHECK(std::has_single_bit(static_cast<unsigned>(size)), "[comm] ", op,
              ": got a tree's order over ", size,
              " ranks, expected a power of two; leave the order out");
}

void check_reduce_op(const char* op, const Collective& call, int size) {
  check_order(op, call, size);
  const at::Tensor& tensor = call.input;
  TORCH_CHECK(call.reduce != ReduceOp::kAvg || at::isFloatingType(tensor.scalar_type()), "[comm] ",
              op, ": got AVG of ", name_of(tensor.scalar_type()),
              ", expected a floating dtype; reduce with SUM and divide yourself");
  if (call.divisor == 0.0) return;
  TORCH_CHECK(is_fp32_factor(call.divisor), "[comm] ", op, ": got divisor ",
              number_text(call.divisor),
              ", expected 1.2e-38 to 3.4e38, or 0 for the number of ranks");
  TORCH_CHECK(call.reduce == ReduceOp::kAvg, "[comm] ", op, ": got divisor ",
              number_text(call.divisor), " beside ", std::string(to_string(call.reduce)),
              ", expected AVG, which divides; leave one of the two out");
}

void check_same_dtype(const char* op, const at::Tensor& output, const at::Tensor& input) {
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "[comm] ", op, ": got output of ",
              name_of(output.scalar_type()), " and input of ", name_of(input.scalar_type()),
              ", expected one dtype; convert one of them first");
}

/// `slice` may be one of the `count` equal slices of `whole`, or lie elsewhere; anything between is
/// an overlap.
void check_slice_or_apart(const char* op, const char* slice_name, const at::Tensor& slice,
                          const char* whole_name, const at::Tensor& whole, int count) {
  if (slice.numel() == 0) return;
  const auto* slice_begin = static_cast<const char*>(slice.const_data_ptr());
  const auto* slice_end = slice_begin + slice.nbytes();
  const auto* whole_begin = static_cast<const char*>(whole.const_data_ptr());
  const auto* whole_end = whole_begin + whole.nbytes();
  if (slice_end <= whole_begin || whole_end <= slice_begin) return;
  const auto offset = slice_begin - whole_begin;
  const bool is_slice = offset >= 0 && slice_end <= whole_end &&
                        offset % static_cast<std::ptrdiff_t>(slice.nbytes()) == 0;
  TORCH_CHECK(is_slice, "[comm] ", op, ": got ", slice_name, " that overlaps ", whole_name,
              " at byte ", offset, ", expected one of its ", count,
              " equal slices or memory apart; use this rank's own slice");
}

/// `slice` may be slice number `own` of `whole`, but no other one.
void check_own_slice(const char* op, const at::Tensor& slice, const at::Tensor& whole, int own) {
  if (slice.numel() == 0) return;
  const auto offset = static_cast<const char*>(slice.const_data_ptr()) -
                      static_cast<const char*>(whole.const_data_ptr());
  const auto slice_bytes = static_cast<std::ptrdiff_t>(slice.nbytes());
  if (offset < 0 || offset >= static_cast<std::ptrdiff_t>(whole.nbytes())) return;
  TORCH_CHECK(offset == own * slice_bytes, "[comm] ", op, ": got slice ", offset / slice_bytes,
              " of the whole, expected slice ", own,
              ", which is this rank's, or memory apart; use this rank's own slice");
}

void check_root(const char* op, int root, int size) {
  TORCH_CHECK(root >= 0 && root < size, "[comm] ", op, ": got root ", root, ", expected 0 to ",
              size - 1, "; roots are numbered within the group");
}

void check_reduce_scatter(const Collective& call, int size, at::Device device) {
  const char* const op = "reduce_scatter";
  check_collective_tensor(op, "output", call.output, device);
  check_collective_tensor(op, "input", call.input, device);
  check_same_dtype(op, call.output, call.input);
  check_reduce_op(op, call, size);
  const int64_t numel = call.output.numel();
  TORCH_CHECK(call.input.numel() == numel * size, "[comm] reduce_scatter: got input of ",
              call.input.numel(), " and output of ", numel, " elements on ", size,
              " ranks, expected input of ", numel * size,
              "; pad the input to a multiple of the ranks");
  TORCH_CHECK(call.slice >= 0 && call.slice < size, "[comm] reduce_scatter: got slice ", call.slice,
              ", expected 0 to ", size - 1, ", or kOwnRank; the input has one slice for each rank");
  check_slice_or_apart(op, "output", call.output, "input", call.input, size);
  check_own_slice(op, call.output, call.input, call.slice);
}

void check_all_gather(const Collective& call, int rank, int size, at::Device device) {
  const char* const op = "all_gather";
  check_collective_tensor(op, "output", call.output, device);
  check_collective_tensor(op, "input", call.input, device);
  check_same_dtype(op, call.output, call.input);
  const int64_t numel = call.input.numel();
  TORCH_CHECK(call.output.numel() == numel * size, "[comm] all_gather: got output of ",
              call.output.numel(), " and input of ", numel, " elements on ", size,
              " ranks, expected output of ", numel * size,
              "; every rank gives the same number of elements");
  check_slice_or_apart(op, "input", call.input, "output", call.output, size);
  check_own_slice(op, call.input, call.output, rank);
}

}  // namespace

const char* to_string(Op op) { return traits_of(op).name; }

const char* dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::Double:
      return "float64";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    case c10::ScalarType::Half:
      return "float16";
    case c10::ScalarType::Long:
      return "int64";
    case c10::ScalarType::Int:
      return "int32";
    case c10::ScalarType::Byte:
      return "uint8";
    default:
      return kUnsupported.data();
  }
}

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "SUM";
    case ReduceOp::kAvg:
      return "AVG";
    case ReduceOp::kMin:
      return "MIN";
    case ReduceOp::kMax:
      return "MAX";
  }
  return "unknown";
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
  TORCH_CHECK(is_supported(tensor.scalar_type()), "[comm] ", op, ": got ", argument, " of ",
              name_of(tensor.scalar_type()), ", expected ", kDtypes, "; convert it first");
  TORCH_CHECK(tensor.is_contiguous(), "[comm] ", op, ": got a non-contiguous ", argument,
              " of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
              ", expected a contiguous one; call contiguous() first");
}

CallSignature Collective::signature() const {
  CallSignature signature{
      .op = op, .reduce = reduce, .order = order, .peer = peer, .divisor = divisor};
  if (!input.defined()) return signature;
  signature.dtype = input.scalar_type();
  signature.numel = input.numel();
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
  }
  if (call.peer >= 0) {
    const bool root_takes = traits.root == OpTraits::Root::kTakes;
    absl::StrAppend(&text, root_takes ? " to rank " : " from rank ", call.peer);
  }
  return absl::StrCat(text, " '", std::string(tag), "'");
}

void check(const Collective& collective, int rank, int size, at::Device device) {
  const OpTraits traits = traits_of(collective.op);
  const at::Device place = traits.is_on_host ? at::Device(at::kCPU) : device;
  switch (traits.tensors) {
    case OpTraits::Tensors::kNone:
      return;
    case OpTraits::Tensors::kScatter:
      return check_reduce_scatter(collective, size, place);
    case OpTraits::Tensors::kGather:
      return check_all_gather(collective, rank, size, place);
    case OpTraits::Tensors::kInPlace:
      check_collective_tensor(traits.name, "tensor", collective.input, place);
      if (traits.reduces) check_reduce_op(traits.name, collective, size);
      if (traits.root != OpTraits::Root::kNone) check_root(traits.name, collective.peer, size);
  }
}

}  // namespace tessera
