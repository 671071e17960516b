#include "tessera/core/comm/groups/staged_group.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/groups/works.h"
#include "tessera/core/device/graph.h"
#include "tessera/core/process/error_text.h"
#include "tessera/errors.h"

namespace tessera::internal {

StagedGroup::StagedGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<Device> device)
    : ForwardingGroup(std::move(inner)),
      device_(std::move(device)),
      arrived_(device_->make_event()) {}

/// Runs the collective. An error in this rank's part of it aborts the group, because the other
/// ranks wait for this rank inside the collective.
std::shared_ptr<Work> StagedGroup::run(const Collective& collective) {
  const OpTraits traits = traits_of(collective.op);
  if (!traits.is_collective) refuse(collective);
  if (traits.is_on_host) {
    return inner_->start_gather_on_host(collective.output, collective.input, collective.tag);
  }
  const std::string tag(collective.tag);
  TORCH_CHECK(!is_capturing(), "[comm] ", traits.name, " '", tag,
              "': is being captured into a CUDA graph, expected it outside, as the host takes part"
              " in it; end the capture before it");
  if (collective.after != nullptr) collective.after->wait();
  try {
    return take_part(collective);
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string cause = absl::StrCat("rank ", rank(), " failed: ", error_text(error));
    inner_->abort(cause);
    throw CommError({traits.name, std::string(name()), -1, rank(), tag}, cause);
  }
}

/// Copies this rank's input to host memory, runs the collective there and copies the result back.
std::shared_ptr<Work> StagedGroup::take_part(const Collective& collective) {
  using Tensors = OpTraits::Tensors;
  const OpTraits traits = traits_of(collective.op);
  const bool is_message = traits.tensors == Tensors::kMessage;
  const bool gives = traits.gives(rank(), collective.peer);
  Collective staged = collective;
  staged.input = stage(collective.input);
  staged.output =
      traits.tensors == Tensors::kInPlace || is_message ? staged.input : stage(collective.output);
  if (gives) queue_copy(device_.get(), staged.input, collective.input);
  if (gives || collective.op == Op::kBarrier) {
    device_->current_stream()->record(*arrived_);
    arrived_->synchronize();
  }
  auto work = inner_->run(staged);
  if (collective.op == Op::kRecv) {
    // wait() queues the copy to the device on the stream that is current at that time.
    return continued(std::move(work),
                     [device = device_, to = collective.output, from = staged.output] {
                       queue_copy(device.get(), to, from);
                       return queued_work(device);
                     });
  }
  if (is_message || collective.op == Op::kBarrier) return work;
  work->wait();
  if (traits.takes(rank(), collective.peer)) {
    queue_copy(device_.get(), collective.output, staged.output);
  }
  return queued_work(device_);
}

/// Returns host memory of the size of `tensor`. The memory may be dropped while copies still use
/// it; it is reused only after they end.
at::Tensor StagedGroup::stage(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return device_->allocate_on_host(tensor.numel(), tensor.scalar_type());
}

at::Tensor StagedGroup::allocate(int64_t numel, at::ScalarType dtype) {
  check_allocate(numel, dtype);
  return device_->allocate(numel, dtype);
}

}  // namespace tessera::internal
