#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/group/member.h"

namespace tessera::internal::shm {

/// What a rank has promised its peers and goes on with while any of its threads waits for them: see
/// Note [Calls under way]. Thread-safe. Not to be used in a child of fork().
class Progress {
 public:
  void add(std::weak_ptr<Member> member);
  /// So many more groups (negative: fewer) have something under way.
  void count(int groups) { busy_.fetch_add(groups, std::memory_order_relaxed); }
  /// Local. Goes on with all groups, if more than the caller's has something under way; returns at
  /// once if another thread is at it.
  void advance() noexcept {
    if (busy_.load(std::memory_order_relaxed) > 1) advance_all();
  }
  /// This rank makes no more calls in any group.
  void leave();
  /// Keeps memory that peers may still write to as long as this is there.
  void keep(at::Tensor tensor);

 private:
  void advance_all() noexcept;
  void take_added();

  std::atomic<int> busy_{0};
  std::mutex mutex_;
  std::vector<std::weak_ptr<Member>> members_;
  std::mutex added_mutex_;
  std::vector<std::weak_ptr<Member>> added_;  // since members_ were last looked at
  std::mutex kept_mutex_;
  std::vector<at::Tensor> kept_;
};

}  // namespace tessera::internal::shm
