#include "tessera/core/comm/hosts/part_group.h"

#include <utility>

#include <absl/strings/str_cat.h>

namespace tessera::internal::hosts {

PartGroup::PartGroup(std::shared_ptr<World> world, std::shared_ptr<ProcessGroup> inner,
                     std::string name)
    : ForwardingGroup(std::move(inner)),
      world_(std::move(world)),
      name_(std::move(name)),
      leaves_(leave_groups_of_host({inner_.get()})) {}

PartGroup::~PartGroup() {
  if (unwinding_.is_by_own_error()) world_->fail_by_unwinding();
}

std::shared_ptr<ProcessGroup> PartGroup::subgroup(const std::vector<int>& ranks,
                                                  std::string_view name) {
  auto made = inner_->subgroup(ranks, name);
  if (made == nullptr) return nullptr;
  return std::make_shared<PartGroup>(world_, std::move(made),
                                     absl::StrCat(name_, "/", std::string(name)));
}

}  // namespace tessera::internal::hosts
