#include "tessera/core/comm/staged_group.h"

#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/stream_work.h"
#include "tessera/core/device/graph.h"
#include "tessera/core/error_text.h"
#include "tessera/core/errors.h"

namespace tessera {
namespace {

/// Copies take equal shapes.
at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().view({tensor.numel()}); }

}  // namespace

StagedGroup::StagedGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<Device> device)
    : inner_(std::move(inner)), device_(std::move(device)), arrived_(device_->make_event()) {}

/// The others wait for this rank in the middle of a collective, so whatever goes wrong there is
/// everyone's.
void StagedGroup::guard(Op op, std::string_view tag, const std::function<void()>& body) {
  TORCH_CHECK(!is_capturing(), "[comm] ", to_string(op), " '", std::string(tag),
              "': is being captured into a CUDA graph, expected it outside, as the host takes part"
              " in it; end the capture before it");
  try {
    body();
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string cause = absl::StrCat("rank ", rank(), " failed: ", error_text(error));
    inner_->abort(cause);
    throw CommError({to_string(op), std::string(name()), -1, rank(), std::string(tag)}, cause);
  }
}

/// Copies from it may be in flight when it is dropped: it is used again when they are over.
at::Tensor StagedGroup::stage(int64_t numel, at::ScalarType dtype) {
  return device_->allocate_on_host(numel, dtype);
}

void StagedGroup::await_stream() {
  device_->current_stream()->record(*arrived_);
  arrived_->synchronize();
}

void StagedGroup::bring(const at::Tensor& to, const at::Tensor& from) {
  if (from.numel() > 0) device_->current_stream()->copy(to, flat(from));
  await_stream();
}

void StagedGroup::give(const at::Tensor& to, const at::Tensor& from) {
  if (from.numel() > 0) device_->current_stream()->copy(flat(to), from);
}

std::shared_ptr<Work> StagedGroup::all_reduce(const at::Tensor& tensor, ReduceOp op,
                                              std::string_view tag) {
  check_all_reduce(tensor, op, place());
  guard(Op::kAllReduce, tag, [&] {
    const at::Tensor staged = stage(tensor.numel(), tensor.scalar_type());
    bring(staged, tensor);
    inner_->all_reduce(staged, op, tag)->wait();
    give(tensor, staged);
  });
  return queued_work(device_);
}

std::shared_ptr<Work> StagedGroup::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                                  ReduceOp op, std::string_view tag, int slice) {
  check_reduce_scatter(output, input, op, size(), slice, place());
  const int own = slice == kOwnRank ? rank() : slice;
  check_own_slice("reduce_scatter", output, input, own);
  guard(Op::kReduceScatter, tag, [&] {
    const at::Tensor staged = stage(input.numel(), input.scalar_type());
    bring(staged, input);
    const at::Tensor result = staged.narrow(0, own * output.numel(), output.numel());
    inner_->reduce_scatter(result, staged, op, tag, own)->wait();
    give(output, result);
  });
  return queued_work(device_);
}

std::shared_ptr<Work> StagedGroup::all_gather(const at::Tensor& output, const at::Tensor& input,
                                              std::string_view tag) {
  check_all_gather(output, input, size(), place());
  check_own_slice("all_gather", input, output, rank());
  guard(Op::kAllGather, tag, [&] {
    const at::Tensor staged = stage(output.numel(), output.scalar_type());
    const at::Tensor own = staged.narrow(0, rank() * input.numel(), input.numel());
    bring(own, input);
    inner_->all_gather(staged, own, tag)->wait();
    give(output, staged);
  });
  return queued_work(device_);
}

std::shared_ptr<Work> StagedGroup::broadcast(const at::Tensor& tensor, int root,
                                             std::string_view tag) {
  check_broadcast(tensor, root, size(), place());
  guard(Op::kBroadcast, tag, [&] {
    const at::Tensor staged = stage(tensor.numel(), tensor.scalar_type());
    if (rank() == root) bring(staged, tensor);
    inner_->broadcast(staged, root, tag)->wait();
    if (rank() != root) give(tensor, staged);
  });
  return queued_work(device_);
}

void StagedGroup::barrier(std::string_view tag) {
  guard(Op::kBarrier, tag, [&] { await_stream(); });
  inner_->barrier(tag);
}

at::Tensor StagedGroup::allocate(int64_t numel, at::ScalarType dtype) {
  check_allocate(numel, dtype);
  return device_->allocate(numel, dtype);
}

std::unique_ptr<Window> StagedGroup::make_window(const at::Tensor& /*own*/, std::string_view name) {
  TORCH_CHECK(false, "[comm] make_window '", name, "': got a group on ", place(),
              ", expected one of the host, whose ranks read each other's memory; gather instead");
}

std::unique_ptr<SharedBuffer> StagedGroup::make_shared_buffer(int64_t /*bytes*/,
                                                              std::string_view /*name*/) {
  return nullptr;
}

std::shared_ptr<ProcessGroup> StagedGroup::subgroup(const std::vector<int>& ranks,
                                                    std::string_view name) {
  auto made = inner_->subgroup(ranks, name);
  if (made == nullptr) return nullptr;
  return std::make_shared<StagedGroup>(std::move(made), device_);
}

}  // namespace tessera
