#include "tessera/core/comm/process_group.h"

#include <limits>
#include <map>
#include <numeric>

#include <ATen/core/Tensor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

namespace tessera {
namespace {

constexpr const char* kDtypes = "float32, float64, bfloat16, float16, int64, int32 or uint8";

bool is_supported(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
    case at::kLong:
    case at::kInt:
    case at::kByte:
      return true;
    default:
      return false;
  }
}

const char* name_of(at::ScalarType dtype) { return c10::toString(dtype); }

void check_reduce_op(const char* op, const at::Tensor& tensor, ReduceOp reduce_op) {
  TORCH_CHECK(reduce_op != ReduceOp::kAvg || at::isFloatingType(tensor.scalar_type()), "[comm] ",
              op, ": got AVG of ", name_of(tensor.scalar_type()),
              ", expected a floating dtype; reduce with SUM and divide yourself");
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

}  // namespace

void ProcessGroup::all_gather_on_host(const at::Tensor& output, const at::Tensor& input,
                                      std::string_view tag) {
  all_gather(output, input, tag)->wait();
}

std::shared_ptr<Work> ProcessGroup::start_gather_on_host(const at::Tensor& output,
                                                         const at::Tensor& input,
                                                         std::string_view tag) {
  all_gather_on_host(output, input, tag);
  return completed_work();
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
                             at::Device place) {
  TORCH_CHECK(tensor.defined(), "[comm] ", op, ": got an undefined ", argument,
              ", expected a contiguous tensor on ", place, "; allocate it first");
  const at::Device device = tensor.device();
  TORCH_CHECK(device == place || (device.is_cpu() && place.is_cpu()), "[comm] ", op, ": got ",
              argument, " on ", device, ", expected it on ", place,
              ", where this rank's tensors of the group lie; move it there first");
  TORCH_CHECK(tensor.layout() == at::kStrided, "[comm] ", op, ": got ", argument, " of layout ",
              tensor.layout(), ", expected a strided tensor; call to_dense() first");
  TORCH_CHECK(is_supported(tensor.scalar_type()), "[comm] ", op, ": got ", argument, " of ",
              name_of(tensor.scalar_type()), ", expected ", kDtypes, "; convert it first");
  TORCH_CHECK(tensor.is_contiguous(), "[comm] ", op, ": got a non-contiguous ", argument,
              " of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
              ", expected a contiguous one; call contiguous() first");
}

void check_all_reduce(const at::Tensor& tensor, ReduceOp op, at::Device place) {
  check_collective_tensor("all_reduce", "tensor", tensor, place);
  check_reduce_op("all_reduce", tensor, op);
}

void check_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, int size,
                          int slice, at::Device place) {
  check_collective_tensor("reduce_scatter", "output", output, place);
  check_collective_tensor("reduce_scatter", "input", input, place);
  check_same_dtype("reduce_scatter", output, input);
  check_reduce_op("reduce_scatter", input, op);
  TORCH_CHECK(input.numel() == output.numel() * size, "[comm] reduce_scatter: got input of ",
              input.numel(), " and output of ", output.numel(), " elements on ", size,
              " ranks, expected input of ", output.numel() * size,
              "; pad the input to a multiple of the ranks");
  TORCH_CHECK(slice == ProcessGroup::kOwnRank || (slice >= 0 && slice < size),
              "[comm] reduce_scatter: got slice ", slice, ", expected 0 to ", size - 1,
              ", or kOwnRank; the input has one slice for each rank");
  check_slice_or_apart("reduce_scatter", "output", output, "input", input, size);
}

void check_all_gather(const at::Tensor& output, const at::Tensor& input, int size,
                      at::Device place) {
  check_collective_tensor("all_gather", "output", output, place);
  check_collective_tensor("all_gather", "input", input, place);
  check_same_dtype("all_gather", output, input);
  TORCH_CHECK(output.numel() == input.numel() * size, "[comm] all_gather: got output of ",
              output.numel(), " and input of ", input.numel(), " elements on ", size,
              " ranks, expected output of ", input.numel() * size,
              "; every rank gives the same number of elements");
  check_slice_or_apart("all_gather", "input", input, "output", output, size);
}

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

void check_broadcast(const at::Tensor& tensor, int root, int size, at::Device place) {
  check_collective_tensor("broadcast", "tensor", tensor, place);
  TORCH_CHECK(root >= 0 && root < size, "[comm] broadcast: got root ", root, ", expected 0 to ",
              size - 1, "; roots are numbered within the group");
}

void check_subgroup(const std::vector<int>& ranks, std::string_view name, int size,
                    const std::set<std::string, std::less<>>& names) {
  TORCH_CHECK(!name.empty(),
              "[comm] subgroup: got an empty name, expected a new one; give it a name");
  TORCH_CHECK(names.find(name) == names.end(), "[comm] subgroup: got the name '", name,
              "', expected one that this group has not given yet; use another name");
  bool ascending = !ranks.empty();
  for (size_t i = 0; i < ranks.size(); ++i) {
    ascending =
        ascending && ranks[i] >= 0 && ranks[i] < size && (i == 0 || ranks[i - 1] < ranks[i]);
  }
  TORCH_CHECK(ascending, "[comm] subgroup '", name, "': got ranks [", absl::StrJoin(ranks, ", "),
              "], expected strictly ascending ranks from 0 to ", size - 1,
              "; sort them and leave out duplicates");
}

int64_t check_allocate(int64_t numel, at::ScalarType dtype) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  TORCH_CHECK(numel >= 0 && numel <= std::numeric_limits<int64_t>::max() / 16,
              "[comm] allocate: got ", numel, " elements, expected 0 or more; check the size");
  return numel * element_bytes;
}

std::shared_ptr<ProcessGroup> duplicate(ProcessGroup& group, std::string_view name) {
  std::vector<int> ranks(group.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return group.subgroup(ranks, name);
}

std::shared_ptr<ProcessGroup> split(ProcessGroup& group, const std::vector<int>& color_of_rank,
                                    std::string_view name) {
  const auto count = static_cast<int>(color_of_rank.size());
  TORCH_CHECK(count == group.size(), "[comm] split '", name, "': got ", count,
              " colours, expected ", group.size(), ", one for each rank of group '", group.name(),
              "'; correct them");
  std::vector<int> colors;  // by first rank
  std::map<int, std::vector<int>> ranks_of;
  for (int rank = 0; rank < count; ++rank) {
    std::vector<int>& ranks = ranks_of[color_of_rank[rank]];
    if (ranks.empty()) colors.push_back(color_of_rank[rank]);
    ranks.push_back(rank);
  }
  // Every rank takes part in making every group, its own or not.
  std::shared_ptr<ProcessGroup> own;
  for (const int color : colors) {
    auto made = group.subgroup(ranks_of[color], absl::StrCat(std::string(name), " ", color));
    if (made != nullptr) own = std::move(made);
  }
  return own;
}

}  // namespace tessera
