#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/core/device/device.h"

namespace tessera::internal {

/// A group whose tensors lie on devices and that communicates through host memory, so that several
/// ranks can share one device. Results (to the bit), errors and the comparison of calls are those
/// of `inner` for CPU tensors. For tests, and for GPUs without NCCL.
///
/// If this rank gives input, a collective first blocks until the current stream has produced it.
/// The collective then runs on the CPU inside the call, and queues its result on the current
/// stream. Staging is host memory that the device copies directly (Device::allocate_on_host),
/// allocated for each call. A failure throws the same CommError on every rank. There are no windows
/// and no shared buffers.
class StagedGroup final : public ForwardingGroup {
 public:
  /// `inner` is a group of CPU tensors; neither may be null.
  StagedGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<Device> device);

  Capabilities can() const override {
    return {.completes_on_host = device().is_cpu(), .has_host_channel = true};
  }
  at::Device device() const override { return device_->torch_device(); }

  /// A barrier also waits for the work that is queued on the current stream of every rank.
  std::shared_ptr<Work> run(const Collective& collective) override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    return ProcessGroup::make_window(own, name);
  }
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t /*bytes*/,
                                                   std::string_view /*name*/) override {
    return nullptr;
  }

 private:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<StagedGroup>(std::move(inner), device_);
  }
  std::shared_ptr<Work> take_part(const Collective& collective);
  at::Tensor stage(const at::Tensor& tensor);

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Event> arrived_;
};

}  // namespace tessera::internal
