#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace tessera::internal {

/// Note [End of the process]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~
/// exit(), and the return from main(), destroy static objects, LibTorch's and the program's. All
/// other threads keep running meanwhile, and may still have work from an engine that was leaked, or
/// that is on the stack of the thread that calls exit(). So threads that work for groups are
/// EndingThreads. The first EndingThread registers a handler, in which exit() asks all
/// EndingThreads to end and waits for them. Static objects that were made before the first
/// EndingThread are destroyed after that. Static objects that are made later, such as those in
/// functions, are destroyed earlier; so static objects that these threads use are never destroyed.
///
/// Groups over MPI need their threads until this rank has left MPI. The handler that leaves MPI is
/// registered later, and so runs first (Note [End of MPI]).

/// A thread that ends before static objects are destroyed. It does not exist in a child of fork(),
/// where none of its functions may be called.
class EndingThread {
 public:
  /// Makes an object without a thread.
  EndingThread() = default;
  /// Local. Starts a thread for `purpose`. If `run` has not returned when the process ends, another
  /// thread calls `ask_to_end` (may be null) and then waits at most five seconds for `run`.
  /// `ask_to_end` must not block or call this class, and is destroyed with the thread. Throws
  /// std::runtime_error that names `purpose` if no thread can be started.
  EndingThread(std::string_view purpose, std::function<void()> run,
               std::function<void()> ask_to_end = nullptr);

  /// Blocks until `run` has returned; returns at once if called inside `run`. Call once.
  void join();
  /// Lets the thread run on; nothing will join it.
  void detach();

 private:
  struct Entry;
  struct All;

  std::shared_ptr<Entry> entry_;
};

}  // namespace tessera::internal
