#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace tessera::internal {

/// Note [Fork]
/// ~~~~~~~~~~~
/// A child of fork() has a copy of every object but none of the threads, and it must not
/// communicate in its parent's name. So every object that a program holds and calls (groups, works,
/// windows, shared buffers, engines, their scopes, checkpoints) compares its Origin with the
/// present process. In a child, calls throw, and destructors do not touch inner objects, because a
/// thread that does not exist there may have locked them or half changed them. Inner objects do not
/// check again. Exit handlers and observers of operators check, too, because no outer object calls
/// them.
///
/// Shared segments become private mappings in the child, copied at the first write (Segment). Until
/// then the child sees later writes of the parent, so it has no snapshot, and reading parameters
/// throws (ThrowingStorage). Process-wide locks that any thread may hold at any time are held
/// across fork().
///
/// Code that runs in the child before fork() returns may only store to memory and make system
/// calls, because other threads of the parent may have held any lock. A child may make groups and
/// engines of its own. Processes made by clone(), which does not call fork handlers, are not
/// detected.

/// Identifies the process that made an object.
class Origin {
 public:
  /// Throws std::runtime_error if the C library has no room for fork handlers.
  Origin();

  /// Returns true in the process that made the object, false in its children. Costs one load; any
  /// code may call it.
  bool is_here() const { return forks_ == forks_so_far_.load(std::memory_order_relaxed); }

  /// Returns the error text for a child: "this process is a fork of <whom> (pid 12) and cannot use
  /// its groups, ...; use them there, ...".
  std::string fork_error(std::string_view whom) const;

 private:
  friend struct ForkHandlers;

  /// Number of forks between this program's first process and the calling one.
  static inline std::atomic<uint32_t> forks_so_far_{0};

  uint32_t forks_;
  pid_t pid_;
};

/// Local. Keeps `what` for ever and never destroys it. Leak checkers do not report it, because it
/// stays reachable.
void never_destroy(std::shared_ptr<void> what);

/// Local. Holds `mutex`, which must live as long as the process, around every fork(), so that a
/// child finds it free and the data that it guards consistent. Then runs `in_child`, if any, in the
/// child; it must not allocate or lock. A thread that holds such a mutex must not lock another one.
/// Do not call this while holding `mutex`.
void hold_across_fork(std::mutex& mutex, void (*in_child)() noexcept = nullptr);

}  // namespace tessera::internal
