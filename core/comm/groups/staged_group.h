#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/device/device.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// A group whose tensors lie on devices and that communicates through host memory, so that several
/// ranks can share one device. Results, comparison of calls and errors are those of `inner` for CPU
/// tensors, to the bit. For tests, and for GPUs without NCCL.
///
/// Each collective waits on the host for the current stream, runs on the host in the call, and
/// queues its result on the current stream. Staging is host memory that the device copies from and
/// to directly (Device::allocate_on_host), allocated for each call. A failure throws the same
/// CommError on every rank. There are no windows and no shared buffers.
class StagedGroup final : public ProcessGroup {
 public:
  /// `inner` is a group of CPU tensors; neither may be null.
  StagedGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<Device> device);

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  std::string_view backend() const override { return inner_->backend(); }
  Capabilities can() const override {
    return {.completes_on_host = device().is_cpu(), .has_host_channel = true};
  }
  at::Device device() const override { return device_->torch_device(); }

  /// A barrier waits until what the current stream holds has run on every rank, too.
  std::shared_ptr<Work> run(const Collective& collective) override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  class Receive;

  std::shared_ptr<Work> take_part(const Collective& collective);
  void run_staged(Collective collective);
  void exchange_staged(Collective collective);
  std::shared_ptr<Work> run_message(Collective message);
  at::Tensor stage(int64_t numel, at::ScalarType dtype);
  void bring(const at::Tensor& to, const at::Tensor& from);
  void await_stream();
  void give(const at::Tensor& to, const at::Tensor& from);

  const std::shared_ptr<ProcessGroup> inner_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Event> arrived_;
};

}  // namespace tessera::internal
