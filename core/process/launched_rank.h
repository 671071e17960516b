#pragma once

#include <atomic>
#include <memory>

#include "tessera/core/process/fork.h"
#include "tessera/core/process/job_page.h"

namespace tessera::internal {

/// This process as the launcher knows it that has started it.
struct LaunchedRank {
  Origin origin;
  int rank;  ///< the launcher's number
  int world_size;
  std::unique_ptr<JobPage> page;
  /// Whether the world that was made last gives all ranks the launcher's numbers.
  std::atomic<bool> is_numbered_alike{true};

  /// Any thread. Null before there is one, and in a child of fork(). Cheap.
  static LaunchedRank* own() noexcept {
    LaunchedRank* const own = own_.load(std::memory_order_acquire);
    return own != nullptr && own->origin.is_here() ? own : nullptr;
  }
  /// Returns true if there is one, in a child of fork() too.
  static bool is_known() { return own_.load(std::memory_order_acquire) != nullptr; }
  /// Finds the launcher, if there is one that may know this process by that rank; whether it is
  /// found now. Never destroyed: a process may fail at its very end.
  static bool find(int rank, int world_size);
  /// The same before there is a world, by what the variables say.
  static bool find();

 private:
  static inline std::atomic<LaunchedRank*> own_{nullptr};
};

}  // namespace tessera::internal
