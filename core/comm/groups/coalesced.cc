#include "tessera/process_group.h"

#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/works.h"

namespace tessera {
using namespace internal;

namespace {

at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().view({tensor.numel()}); }

/// Copies the tensors into the buffer, one after the other, or from the buffer back to the tensors.
void copy_all(const at::Tensor& buffer, const std::vector<at::Tensor>& tensors,
              bool into_buffer = true) {
  const at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor part = buffer.narrow(0, begin, tensor.numel());
    into_buffer ? part.copy_(flat(tensor)) : flat(tensor).copy_(part);
    begin += tensor.numel();
  }
}

/// Returns a Work whose wait() copies the results out of the buffer.
std::shared_ptr<Work> with_results(std::shared_ptr<Work> work, const at::Tensor& buffer,
                                   std::vector<at::Tensor> results) {
  return continued(std::move(work), [buffer, results = std::move(results)] {
    copy_all(buffer, results, /*into_buffer=*/false);
    return completed_work();
  });
}

/// Checks the tensors, then returns a buffer for `times` times their elements. A buffer on the CPU
/// comes from allocate(), so it needs no staging. A buffer on a device is ordinary memory, because
/// there allocate() may be collective (NcclOptions).
at::Tensor buffer_for(ProcessGroup& group, const char* op, const std::vector<at::Tensor>& tensors,
                      int times = 1) {
  int64_t numel = 0;
  for (const at::Tensor& tensor : tensors) {
    check_collective_tensor(op, "tensor", tensor, group.device());
    TORCH_CHECK(tensor.scalar_type() == tensors[0].scalar_type(), "[comm] ", op, "_coalesced: got ",
                c10::toString(tensors[0].scalar_type()), " and ",
                c10::toString(tensor.scalar_type()),
                ", expected one dtype; make one call for each dtype");
    numel += times * tensor.numel();
  }
  const at::ScalarType dtype = tensors[0].scalar_type();
  if (group.device().is_cpu()) return group.allocate(numel, dtype);
  return at::empty({numel}, at::TensorOptions().dtype(dtype).device(group.device()));
}

/// Returns this rank's part of a buffer that has one part for each rank.
at::Tensor own_part(const ProcessGroup& group, const at::Tensor& buffer) {
  const int64_t numel = buffer.numel() / group.size();
  return buffer.narrow(0, group.rank() * numel, numel);
}

/// Checks each pair as if it were a `call` of its own.
void check_pairs(const ProcessGroup& group, Collective call, const std::vector<at::Tensor>& outputs,
                 const std::vector<at::Tensor>& inputs) {
  TORCH_CHECK(outputs.size() == inputs.size(), "[comm] ", to_string(call.op), "_coalesced: got ",
              outputs.size(), " outputs and ", inputs.size(),
              " inputs, expected as many of either; pair them");
  for (size_t i = 0; i < inputs.size(); ++i) {
    call.output = outputs[i];
    call.input = inputs[i];
    check(call, group.rank(), group.size(), group.device());
  }
}

/// Appends the number of tensors and their sizes to `tag`. So ranks that compare tags also compare
/// this number and the sizes.
std::string tag_of(std::string_view tag, const std::vector<at::Tensor>& tensors) {
  std::string text =
      absl::StrCat(std::string(tag), tag.empty() ? "" : " ", "of ", tensors.size(), " tensors:");
  for (const at::Tensor& tensor : tensors) absl::StrAppend(&text, " ", tensor.numel());
  return text;
}

/// Returns rank 0's slices of all wholes, then rank 1's, and so on.
std::vector<at::Tensor> slices_of(const std::vector<at::Tensor>& wholes, int size) {
  std::vector<at::Tensor> slices;
  for (int rank = 0; rank < size; ++rank) {
    for (const at::Tensor& whole : wholes) {
      const int64_t numel = whole.numel() / size;
      slices.push_back(flat(whole).narrow(0, rank * numel, numel));
    }
  }
  return slices;
}

}  // namespace

std::shared_ptr<Work> ProcessGroup::all_reduce_coalesced(const std::vector<at::Tensor>& tensors,
                                                         ReduceOp op, std::string_view tag,
                                                         double divisor) {
  if (tensors.empty()) return completed_work();
  const at::Tensor buffer = buffer_for(*this, "all_reduce", tensors);
  copy_all(buffer, tensors);
  return with_results(all_reduce(buffer, op, tag_of(tag, tensors), divisor), buffer, tensors);
}

std::shared_ptr<Work> ProcessGroup::broadcast_coalesced(const std::vector<at::Tensor>& tensors,
                                                        int root, std::string_view tag) {
  if (tensors.empty()) return completed_work();
  const at::Tensor buffer = buffer_for(*this, "broadcast", tensors);
  if (rank() == root) copy_all(buffer, tensors);
  auto work = broadcast(buffer, root, tag_of(tag, tensors));
  return rank() == root ? work : with_results(std::move(work), buffer, tensors);
}

std::shared_ptr<Work> ProcessGroup::all_gather_coalesced(const std::vector<at::Tensor>& outputs,
                                                         const std::vector<at::Tensor>& inputs,
                                                         std::string_view tag) {
  check_pairs(*this, {.op = Op::kAllGather}, outputs, inputs);
  if (inputs.empty()) return completed_work();
  const at::Tensor buffer = buffer_for(*this, "all_gather", inputs, size());
  const at::Tensor own = own_part(*this, buffer);
  copy_all(own, inputs);
  return with_results(all_gather(buffer, own, tag_of(tag, inputs)), buffer,
                      slices_of(outputs, size()));
}

std::shared_ptr<Work> ProcessGroup::reduce_scatter_coalesced(const std::vector<at::Tensor>& outputs,
                                                             const std::vector<at::Tensor>& inputs,
                                                             ReduceOp op, std::string_view tag,
                                                             double divisor) {
  check_pairs(*this, {.op = Op::kReduceScatter, .reduce = op, .divisor = divisor, .slice = rank()},
              outputs, inputs);
  if (inputs.empty()) return completed_work();
  const at::Tensor buffer = buffer_for(*this, "reduce_scatter", outputs, size());
  copy_all(buffer, slices_of(inputs, size()));
  const at::Tensor own = own_part(*this, buffer);
  return with_results(reduce_scatter(own, buffer, op, tag_of(tag, outputs), kOwnRank, divisor), own,
                      outputs);
}

}  // namespace tessera
