#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/comm/groups/self_messages.h"
#include "tessera/core/device/device.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// The world of one rank: every collective, and every message to itself, is a local copy or a
/// no-op, after the same checks as on other backends. Needs no launcher, store or environment.
/// allocate() returns ordinary memory, page-aligned on the CPU.
///
/// On a device, copies are queued on the current stream and nothing waits for the device. As on
/// every device backend there are no windows, so that a program that works with one rank works with
/// several. Besides, the CPU could not load words of a window in device memory.
class LoopbackGroup final : public ProcessGroup {
 public:
  /// Tensors lie on `device`; null: on the host.
  explicit LoopbackGroup(std::shared_ptr<Device> device = nullptr)
      : LoopbackGroup("world", nullptr, std::move(device)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view name() const override { return name_; }
  std::string_view backend() const override { return "loopback"; }
  Capabilities can() const override {
    return {.completes_on_host = device().is_cpu(),
            .has_host_channel = device_ != nullptr,
            .one_sided_reads = device_ == nullptr};
  }
  at::Device device() const override {
    return device_ == nullptr ? at::kCPU : device_->torch_device();
  }

  std::shared_ptr<Work> run(const Collective& collective) override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  /// Accepts any host memory, because no peer has to find it. Throws c10::Error on a device.
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override;
  /// Returns null.
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override;
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override;

 private:
  struct World;  // the first failure's cause, shared by all groups made from one world
  class OwnMemory;

  LoopbackGroup(std::string name, std::shared_ptr<World> world, std::shared_ptr<Device> device);

  const std::string name_;
  const std::shared_ptr<World> world_;
  const std::shared_ptr<Device> device_;
  std::set<std::string, std::less<>> subgroup_names_;
  int64_t sequence_ = 0;
  SelfMessages messages_;
};

}  // namespace tessera::internal
