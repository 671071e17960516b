#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace tessera::internal {

/// Note [End of the process]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~
/// exit(), and the return from main(), destroy static objects, LibTorch's and the program's. All
/// other threads run on meanwhile, with whatever a leaked engine, or one on the stack under exit(),
/// has left them to do. So threads that work for groups are EndingThreads. All of them are asked to
/// end, and the thread that calls exit() waits for them, before any static object is destroyed that
/// was made before the first of them. Static objects that are made later, such as those in
/// functions, are destroyed earlier; so the ones that these threads use are never destroyed.
///
/// Groups over MPI need their threads until this rank has left MPI. That is registered later, and
/// so comes first (Note [End of MPI]).

/// A thread that ends before static objects are destroyed. It does not exist in a child of fork(),
/// where none of its functions may be called.
class EndingThread {
 public:
  /// No thread.
  EndingThread() = default;
  /// Local. Starts a thread for `purpose`. If `run` has not returned when the process ends, another
  /// thread calls `ask_to_end` (may be null), and then waits for at most five seconds. `ask_to_end`
  /// must not block, nor call anything of this class, and is destroyed with the thread. Throws
  /// std::runtime_error that names `purpose` if no thread can be started.
  EndingThread(std::string_view purpose, std::function<void()> run,
               std::function<void()> ask_to_end = nullptr);

  /// Blocks until `run` has returned, unless `run` itself calls this. Once.
  void join();
  /// Nothing will join it.
  void detach();

 private:
  struct Entry;
  struct All;

  std::shared_ptr<Entry> entry_;
};

}  // namespace tessera::internal
