#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/group/member.h"
#include "tessera/core/comm/group/yielding_mutex.h"

namespace tessera::internal::shm {

/// The groups of a rank. They advance while any thread of the rank waits; see Note [Calls under
/// way]. Thread-safe. Not to be used in a child of fork().
class Progress {
 public:
  /// Adds a group. May be called inside advance(), because a call may make a group.
  void add(std::weak_ptr<Member> member) {
    const std::lock_guard lock(added_mutex_);
    added_.push_back(std::move(member));
  }
  /// Adds `groups` (may be negative) to the number of groups with calls under way.
  void count(int groups) { busy_.fetch_add(groups, std::memory_order_relaxed); }
  /// Local. Advances all groups, unless the caller's group is the only one with calls under way.
  /// Returns immediately if another thread is advancing them.
  void advance() noexcept {
    if (busy_.load(std::memory_order_relaxed) <= 1) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    take_added();
    for (const auto& one : members_) {
      if (const auto member = one.lock()) member->help();
    }
  }
  /// Leaves all groups: tells them that this rank makes no more calls in any group.
  void leave() {
    std::unique_lock lock(mutex_);
    take_added();
    const auto members = members_;
    // Unlock first: Member::leave() waits for calls. Such a call may make a group, and only
    // advance(), which needs the lock, takes up new groups.
    lock.unlock();
    for (const auto& one : members) {
      if (const auto member = one.lock()) member->leave();
    }
  }
  /// Keeps `tensor` as long as this object lives, because peers may still write to its memory.
  void keep(at::Tensor tensor) {
    const std::lock_guard lock(added_mutex_);
    kept_.push_back(std::move(tensor));
  }

 private:
  void take_added() {
    const std::lock_guard lock(added_mutex_);
    if (added_.empty()) return;
    std::erase_if(members_, [](const auto& one) { return one.expired(); });
    members_.insert(members_.end(), added_.begin(), added_.end());
    added_.clear();
  }

  std::atomic<int> busy_{0};
  // Not a std::mutex, because a call that advance() advances may call advance() again on the same
  // thread. try_lock() must then return false, but on a std::mutex that the thread holds it is
  // undefined.
  YieldingMutex mutex_;
  std::vector<std::weak_ptr<Member>> members_;
  std::mutex added_mutex_;
  std::vector<std::weak_ptr<Member>> added_;  // not yet in members_
  std::vector<at::Tensor> kept_;
};

}  // namespace tessera::internal::shm
