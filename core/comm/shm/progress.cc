#include "tessera/core/comm/shm/progress.h"

#include <utility>

namespace tessera::internal::shm {

/// A call that is gone on with may make a group.
void Progress::add(std::weak_ptr<Member> member) {
  const std::lock_guard lock(added_mutex_);
  added_.push_back(std::move(member));
}

void Progress::take_added() {
  const std::lock_guard lock(added_mutex_);
  if (added_.empty()) return;
  std::erase_if(members_, [](const auto& one) { return one.expired(); });
  members_.insert(members_.end(), added_.begin(), added_.end());
  added_.clear();
}

void Progress::advance_all() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  take_added();
  for (const auto& one : members_) {
    if (const auto member = one.lock()) member->help();
  }
}

void Progress::leave() {
  std::unique_lock lock(mutex_);
  take_added();
  const auto members = members_;
  lock.unlock();  // what is waited for may make groups
  for (const auto& one : members) {
    if (const auto member = one.lock()) member->leave();
  }
}

void Progress::keep(at::Tensor tensor) {
  const std::lock_guard lock(kept_mutex_);
  kept_.push_back(std::move(tensor));
}

}  // namespace tessera::internal::shm
