#include "tessera/zero/buffers/synced_buffers.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/numbers/round_up.h"
#include "tessera/zero/buffers/replica_sync.h"

namespace tessera::internal {
namespace {

// Alignment of each buffer's copy, in bytes; enough for the widest dtype, complex128.
constexpr int64_t kAlignment = 16;

/// Returns the dtype in which `buffer` is averaged; kByte if it is not averaged.
at::ScalarType mean_dtype(const at::Tensor& buffer) {
  const at::ScalarType dtype = c10::toRealValueType(buffer.scalar_type());
  for (const at::ScalarType known : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    if (dtype == known) return known;
  }
  return at::kByte;
}

std::string text_of(const at::Tensor& tensor) {
  return absl::StrCat(c10::toString(tensor.scalar_type()), " [",
                      absl::StrJoin(tensor.sizes(), ", "), "] on ", tensor.device().str());
}

}  // namespace

bool SyncedBuffers::Place::is_as_planned() const {
  const at::Tensor& tensor = buffer.tensor;
  return tensor.scalar_type() == copy.scalar_type() && tensor.sizes() == copy.sizes() &&
         tensor.device() == copy.device();
}

std::unique_ptr<SyncedBuffers> SyncedBuffers::make(ProcessGroup& group,
                                                   const std::vector<NamedTensor>& buffers,
                                                   BufferSync sync) {
  if (sync == BufferSync::kOnce || buffers.empty() || group.size() == 1) return nullptr;
  std::unique_ptr<SyncedBuffers> synced(new SyncedBuffers(group));
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& buffer : buffers) tensors.push_back(buffer.tensor);
  const std::vector<bool> is_constant =
      read_only_on_any_rank(group, tensors, ReadOnlyMemory(), "buffers that are only read");
  std::vector<NamedTensor> variables;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (is_constant[i]) {
      synced->constants_.push_back({buffers[i], buffers[i].tensor.detach().clone()});
    } else {
      variables.push_back(buffers[i]);
    }
  }
  if (sync == BufferSync::kBroadcast) {
    synced->add_batch(variables, at::kByte, /*is_mean=*/false);
    return synced;
  }
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kByte}) {
    std::vector<NamedTensor> alike = variables;
    std::erase_if(alike, [dtype](const auto& each) { return mean_dtype(each.tensor) != dtype; });
    synced->add_batch(alike, dtype, /*is_mean=*/dtype != at::kByte);
  }
  return synced;
}

void SyncedBuffers::add_batch(const std::vector<NamedTensor>& buffers, at::ScalarType dtype,
                              bool is_mean) {
  std::vector<int64_t> begins;
  int64_t bytes = 0;
  for (const NamedTensor& buffer : buffers) {
    begins.push_back(bytes);
    bytes += round_up(static_cast<int64_t>(buffer.tensor.nbytes()), kAlignment);
  }
  if (bytes == 0) return;
  Batch batch{.flat = group_.allocate(bytes / static_cast<int64_t>(c10::elementSize(dtype)), dtype),
              .is_mean = is_mean};
  batch.flat.zero_();
  const at::Tensor all = batch.flat.view(at::kByte);
  for (size_t i = 0; i < buffers.size(); ++i) {
    const at::Tensor& tensor = buffers[i].tensor;
    const at::Tensor own = all.narrow(0, begins[i], tensor.numel() * tensor.element_size());
    batch.places.push_back({buffers[i], own.view(tensor.scalar_type()).view(tensor.sizes())});
  }
  batches_.push_back(std::move(batch));
}

std::string SyncedBuffers::Place::problem_of_form() const {
  if (is_as_planned()) return "";
  return absl::StrCat("buffer '", buffer.name, "': got ", text_of(buffer.tensor), ", expected ",
                      text_of(copy),
                      ", as at parallelize, because steps make buffers equal on all ranks "
                      "(Options::buffers); keep its shape and dtype, or name it in "
                      "ignores_buffers");
}

std::string SyncedBuffers::problem() const {
  for (const Batch& batch : batches_) {
    for (const Place& place : batch.places) {
      if (std::string problem = place.problem_of_form(); !problem.empty()) return problem;
    }
  }
  for (const Place& place : constants_) {
    if (std::string problem = place.problem_of_form(); !problem.empty()) return problem;
    if (have_same_bits(place.buffer.tensor, place.copy)) continue;
    return absl::StrCat("buffer '", place.buffer.name,
                        "': got other values than at parallelize, expected the same, because a "
                        "rank has it in memory that may not be written (a constant of the program "
                        "or a map of a file that is only read), so that steps cannot make it equal "
                        "on all ranks; clone() it before parallelize, or name it in "
                        "ignores_buffers");
  }
  return "";
}

void SyncedBuffers::start(const Ranks& counted) {
  const at::NoGradGuard no_grad;
  // If the buffers of some ranks do not count, the all_reduce sums over all ranks (those ranks send
  // zeros), and finish() divides by the number of ranks whose buffers count. NCCL can only divide
  // by the number of all ranks.
  divisor_ = counted.count == group_.size() ? 0 : counted.count;
  const ReduceOp mean = divisor_ == 0 ? ReduceOp::kAvg : ReduceOp::kSum;
  for (Batch& batch : batches_) {
    // If the last step was refused, nobody has waited for its collective, which may still use
    // `flat`.
    if (batch.work != nullptr) batch.work->wait();
    const bool counts = counted.has_mine || !batch.is_mean;
    if (!counts) batch.flat.zero_();
    for (const Place& place : batch.places) {
      if (counts && place.is_as_planned()) place.copy.copy_(place.buffer.tensor);
    }
    batch.work = batch.is_mean ? group_.all_reduce(batch.flat, mean, "mean of buffers")
                               : group_.broadcast(batch.flat, counted.first, "buffers");
  }
}

void SyncedBuffers::finish() {
  const at::NoGradGuard no_grad;
  for (Batch& batch : batches_) {
    std::exchange(batch.work, nullptr)->wait();
    if (batch.is_mean && divisor_ != 0) batch.flat.div_(divisor_);
    for (const Place& place : batch.places) {
      if (place.is_as_planned()) overwrite(place.buffer.tensor, place.copy);
    }
  }
}

int64_t SyncedBuffers::bytes() const {
  int64_t bytes = 0;
  for (const Batch& batch : batches_) bytes += static_cast<int64_t>(batch.flat.nbytes());
  for (const Place& place : constants_) bytes += static_cast<int64_t>(place.copy.nbytes());
  return bytes;
}

}  // namespace tessera::internal
