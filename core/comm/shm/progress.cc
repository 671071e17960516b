#include "tessera/core/comm/shm/progress.h"

#include <utility>

namespace tessera::internal::shm {

void Progress::add(std::weak_ptr<Member> member) {
  const std::lock_guard lock(mutex_);
  std::erase_if(members_, [](const auto& one) { return one.expired(); });
  members_.push_back(std::move(member));
}

void Progress::advance_all() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (const auto& one : members_) {
    if (const auto member = one.lock()) member->help();
  }
}

void Progress::keep(at::Tensor tensor) {
  const std::lock_guard lock(kept_mutex_);
  kept_.push_back(std::move(tensor));
}

}  // namespace tessera::internal::shm
