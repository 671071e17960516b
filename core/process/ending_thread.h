#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace tessera::internal {

/// Note [End of the process]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~
/// exit(), and the return from main(), destroy what is static, LibTorch's objects and the
/// program's, while all other threads run on, with whatever a leaked engine, or one on the stack
/// under exit(), has left them to do. So threads that work for groups are EndingThreads: before
/// anything static that was made before the first of them is destroyed, all of them are asked to
/// end, and the thread that calls exit() waits for them. What is static and first used later, as in
/// a function, is destroyed earlier: what these threads use of that kind is never destroyed.
///
/// Groups over MPI need their threads until this rank has left MPI, which is registered later and
/// so comes first (Note [End of MPI]).

/// A thread that has ended before static objects are destroyed. In a child of fork() there is no
/// such thread, and none of its calls may be made.
class EndingThread {
 public:
  /// None.
  EndingThread() = default;
  /// Local. A thread for `purpose`. When the process ends, unless `run` has returned, `ask_to_end`
  /// (may be null) is called by another thread, which then waits for at most five seconds. It must
  /// not block, nor call anything of this class, and it ends with the thread. Throws
  /// std::runtime_error that names `purpose` where no thread can be started.
  EndingThread(std::string_view purpose, std::function<void()> run,
               std::function<void()> ask_to_end = nullptr);

  /// Blocks until `run` has returned, unless that is what calls. Once.
  void join();
  /// Nothing will join it.
  void detach();

 private:
  struct Entry;
  struct All;

  std::shared_ptr<Entry> entry_;
};

}  // namespace tessera::internal
