#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/core/comm/groups/unwinding.h"
#include "tessera/core/comm/hosts/exit_action.h"
#include "tessera/core/comm/hosts/world.h"

namespace tessera::internal::hosts {

/// Ranks that have one level, as a part of a world that has two: a group of one host's shared
/// memory, or of what connects hosts. It fails by itself, and its abort() reaches all groups.
class PartGroup final : public ForwardingGroup {
 public:
  PartGroup(std::shared_ptr<World> world, std::shared_ptr<ProcessGroup> inner, std::string name);
  ~PartGroup() override;

  std::string_view name() const override { return name_; }
  std::vector<std::shared_ptr<Work>> run_batch(const std::vector<Collective>& messages) override {
    return inner_->run_batch(messages);
  }
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override { world_->fail(cause); }

 private:
  const Unwinding unwinding_;
  const std::shared_ptr<World> world_;
  const std::string name_;
  const ExitAction leaves_;
};

}  // namespace tessera::internal::hosts
