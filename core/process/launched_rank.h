#pragma once

#include <atomic>
#include <memory>

#include "tessera/core/process/fork.h"
#include "tessera/core/process/job_page.h"

namespace tessera::internal {

/// This process from its launcher's point of view.
struct LaunchedRank {
  Origin origin;
  int rank;  ///< this process's number in the launcher's page
  int world_size;
  std::unique_ptr<JobPage> page;
  /// True if the newest world gives all ranks the launcher's numbers.
  std::atomic<bool> is_numbered_alike{true};

  /// Any thread, cheap. Returns the launched rank; null before find() has found the launcher, and
  /// in a child of fork().
  static LaunchedRank* own() noexcept {
    LaunchedRank* const own = own_.load(std::memory_order_acquire);
    return own != nullptr && own->origin.is_here() ? own : nullptr;
  }
  /// Returns true if find() has found the launcher, in a child of fork() too.
  static bool is_known() { return own_.load(std::memory_order_acquire) != nullptr; }
  /// Finds the launcher that gave this process the rank `rank`. Returns true if it has found it.
  /// The LaunchedRank is never destroyed, because a process may fail at its very end.
  static bool find(int rank, int world_size);
  /// Like find(rank, world_size), for use before there is a world: takes `rank` and `world_size`
  /// from the environment.
  static bool find();
  /// Tells the launcher, before there is a world, that this process runs its rank. Local.
  static void note_arrival();

 private:
  static inline std::atomic<LaunchedRank*> own_{nullptr};
};

}  // namespace tessera::internal
