#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace tessera::internal {

/// Note [Fork]
/// ~~~~~~~~~~~
/// A child that fork() makes has a copy of every object and none of the threads, and it must not
/// speak in its parent's name. So whatever deals with peers or threads has an Origin and looks at
/// it: calls throw, destructors let go of this process's own things only, and nobody waits for
/// threads that are not there. What ranks share is no longer shared with a child: shared segments
/// become private ones, copied at the first write (Segment); until then the child sees what the
/// parent goes on writing there, so it is no snapshot, and parameters throw (ThrowingStorage).
/// Locks of the process that any thread may hold at any time are held across fork().
///
/// What runs in the child before fork() returns there may only set words and call the kernel: the
/// parent may have had other threads. A child may make groups and engines of its own. Processes
/// made by bare clone() go unnoticed.

/// The process that made an object.
class Origin {
 public:
  /// Throws c10::Error if the C library has no room for fork handlers.
  Origin();

  /// Whether this process is that one, and no child of it. One load; may be called anywhere.
  bool is_here() const { return forks_ == forks_so_far_.load(std::memory_order_relaxed); }

  /// What to say elsewhere: "this process is a fork of <whom> (pid 12), which ...; ...".
  std::string complaint(std::string_view whom) const;

 private:
  friend struct ForkHandlers;

  /// Between the first process of this program and the calling one.
  static inline std::atomic<uint32_t> forks_so_far_{0};

  uint32_t forks_;
  pid_t pid_;
};

/// Local. Has `mutex`, which lives as long as the process, held around every fork(), so that a
/// child finds it free and what it guards whole; then runs `in_child`, if any, in the child: it
/// allocates nothing and takes no lock. Whoever holds one such mutex takes no other. Called without
/// holding it. Throws c10::Error where there is no room for more.
void hold_across_fork(std::mutex& mutex, void (*in_child)() noexcept = nullptr);

}  // namespace tessera::internal
