#include "tessera/core/comm/group/sibling_groups.h"

#include <utility>

#include "tessera/core/comm/group/member.h"

namespace tessera::internal {

void SiblingGroups::add(std::weak_ptr<Member> member) {
  const std::lock_guard lock(mutex_);
  std::erase_if(members_, [](const auto& one) { return one.expired(); });
  members_.push_back(std::move(member));
}

std::string SiblingGroups::cause() const {
  const std::lock_guard lock(mutex_);
  for (const auto& one : members_) {
    const auto member = one.lock();
    std::string cause = member == nullptr ? "" : member->link().failure().cause;
    if (!cause.empty()) return cause;
  }
  return "";
}

}  // namespace tessera::internal
