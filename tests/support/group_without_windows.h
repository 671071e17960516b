#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "tessera/core/comm/groups/forwarding_group.h"

namespace tessera::internal::testing {

/// Behaves as if ranks were on different hosts: they share no memory and cannot read each other's,
/// so they have only collectives.
class GroupWithoutWindows final : public ForwardingGroup {
 public:
  explicit GroupWithoutWindows(std::shared_ptr<ProcessGroup> inner)
      : ForwardingGroup(std::move(inner)) {}

  Capabilities can() const override {
    Capabilities can = inner_->can();
    can.one_sided_reads = false;
    return can;
  }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    // Call the base class's default, which backends without windows inherit.
    return ProcessGroup::make_window(own, name);  // NOLINT(bugprone-parent-virtual-call)
  }
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override {
    return ProcessGroup::make_shared_buffer(bytes, name);  // NOLINT(bugprone-parent-virtual-call)
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<GroupWithoutWindows>(std::move(inner));
  }
};

}  // namespace tessera::internal::testing
