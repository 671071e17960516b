#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/core/comm/mpi/world.h"
#include "tessera/core/process/fork.h"

namespace tessera::internal::mpi {

/// The cause of what is under way, or comes, when that thread has ended.
inline constexpr const char* kProcessEnds = "this process ends";

/// The one thread of the process that calls MPI, so MPI_THREAD_SERIALIZED is enough. While nothing
/// is under way it looks twenty times a second whether others ask something, and where they may
/// read windows a thousand times or more; but where an application has an MPI of its own at
/// MPI_THREAD_SERIALIZED it sleeps, for the application may call MPI then. It is started by the
/// first call.
///
/// Note [End of MPI]
/// ~~~~~~~~~~~~~~~~~
/// MPI can be initialised once in a process, so what is initialised here stays until the process
/// ends. Then (atexit) this rank leaves its worlds and waits until the others have, as MPI_Finalize
/// would. The ranks of its host, who may wait for a collective that this rank will never start,
/// hear before that nothing follows what it has begun. A rank that crashes instead is what mpirun
/// ends all others for. After a failure some rank may never come: the wait is short, and MPI_Abort
/// ends all ranks; so is that for MPI_Finalize. That is short, too, once all ranks have come to it:
/// MPICH 4.0 over UCX and TCP does not always return from it then, and the process ends by itself.
/// An application's own MPI is left to it; at mpi::leave(), or else its MPI_Finalize, this thread
/// lets go. Behind all that the thread ends (Note [End of the process]); an application that
/// finalises its MPI later still does what is left itself.
class Progress {
 public:
  /// Never destroyed.
  static Progress& instance();

  /// Any thread. Runs `job` on the thread, after earlier ones. It must not throw. Returns false,
  /// and nothing runs, once the thread has ended.
  bool post(std::function<void()> job);
  /// Runs it and waits, at most that long; false if it has not ended by then (it may yet). Throws
  /// what it throws. Once the thread has ended, the caller's does it.
  bool run(std::function<void()> job, std::chrono::milliseconds timeout);
  /// Any thread. Runs it at once on the thread, else posts it.
  void run_soon(std::function<void()> job);
  /// Any thread. The thread looks at the worlds soon. Returns false once it has ended.
  bool wake();
  /// Any thread: leaves all worlds, whose calls then fail with that cause, and waits until their
  /// other ranks have, too. Then nothing calls MPI until a world is made.
  void leave(const char* cause);
  /// The thread's: from now on `world` is looked at.
  void attach(std::shared_ptr<World> world) { worlds_.push_back(std::move(world)); }
  /// The thread's. Whether an application may call MPI as soon as nothing is under way, so that
  /// this thread must not.
  bool gives_way() const { return !may_look_; }
  /// The thread's: it has initialised this MPI, as on all ranks, and finalises it when the process
  /// ends.
  void own(const Calls& calls);
  /// The thread's: an application finalises it, unless it is owned.
  void leave_to_application(const Calls& calls);

 private:
  using Clock = std::chrono::steady_clock;

  Progress() = default;
  void loop();
  void pause(int idle_rounds);
  bool has_to_look() const;
  bool look_at_worlds();
  void end();
  void ask_to_end();
  bool has_to_end();
  void leave_hosts();
  void let_go(const char* cause);
  void await_ends();
  bool finalizes(std::chrono::milliseconds others, std::chrono::milliseconds own);
  bool is_over(std::optional<Clock::time_point>& failed);

  const Origin origin_;
  std::atomic<std::thread::id> thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool is_woken_ = false;
  bool is_started_ = false;
  bool process_ends_ = false;
  bool has_ended_ = false;
  std::vector<std::shared_ptr<World>> worlds_;
  const Calls* owned_ = nullptr;
  bool hears_finalize_ = false;  // of an application's
  bool may_look_ = false;    // while nothing is under way: an application does not call MPI then
  bool has_moved_ = false;   // the thread has woken itself
  bool has_failed_ = false;  // a world had when this process ended
};

}  // namespace tessera::internal::mpi
