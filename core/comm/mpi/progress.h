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

/// Cause of the failure of calls that are under way, or begin, after the progress thread has ended.
inline constexpr const char* kProcessEnds = "this process ends";

/// The only thread of the process that calls MPI, so MPI_THREAD_SERIALIZED is enough. While no call
/// is under way, it polls for other ranks' requests: at least a thousand times a second if they may
/// read windows, otherwise twenty times. In the latter case it sleeps instead if the application
/// uses MPI itself at MPI_THREAD_SERIALIZED, because the application may then call MPI. The first
/// call starts the thread.
///
/// Note [End of MPI]
/// ~~~~~~~~~~~~~~~~~
/// MPI can be initialised once in a process, so an MPI that was initialised here stays until the
/// process ends. Then (atexit) this rank leaves its worlds and waits until the other ranks have
/// left, as MPI_Finalize would. Before that it tells the ranks of its host that it starts no more
/// collectives, because they may be waiting for one. If a rank crashes instead, mpirun ends all
/// others.
///
/// After a failure some ranks may never leave. So the wait is short, and MPI_Abort then ends all
/// ranks. The wait for MPI_Finalize is short, too. Without a failure it is also short once all
/// ranks have come to MPI_Finalize, because MPICH 4.0 over UCX and TCP may not return from it; the
/// process then ends without it.
///
/// An MPI that the application has initialised is finalised by the application. This thread leaves
/// its worlds in mpi::leave(), or else in the application's MPI_Finalize. The thread ends when the
/// process does (Note [End of the process]). If the application calls MPI_Finalize even later, the
/// calling thread leaves the worlds.
class Progress {
 public:
  /// Never destroyed.
  static Progress& instance();

  /// Any thread. Runs `job` on the thread, after earlier ones. It must not throw. Returns false,
  /// and runs nothing, once the thread has ended.
  bool post(std::function<void()> job);
  /// Runs `job` on the thread and waits for at most `timeout`. Returns false if `job` has not
  /// finished by then; it may still finish later. Throws what `job` throws. Once the thread has
  /// ended, the calling thread runs `job`.
  bool run(std::function<void()> job, std::chrono::milliseconds timeout);
  /// Any thread. Runs `job` at once if called on the thread, else posts it.
  void run_soon(std::function<void()> job);
  /// Any thread. Has the thread look at the worlds soon. Returns false once it has ended.
  bool wake();
  /// Any thread. Leaves all worlds, whose calls then fail with `cause`, and waits until the other
  /// ranks have left them, too. After that, Tessera does not call MPI until the next world is made.
  void leave(const char* cause);
  /// On the thread. Advances `world` from now on.
  void attach(std::shared_ptr<World> world) { worlds_.push_back(std::move(world)); }
  /// On the thread. Returns true if the application may call MPI while nothing is under way, so
  /// that this thread must not.
  bool gives_way() const { return !may_look_; }
  /// On the thread. Notes that the thread has initialised this MPI, as on all ranks, and finalises
  /// it at exit.
  void own(const Calls& calls);
  /// On the thread. Notes that the application finalises this MPI. Has no effect after own().
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
  bool hears_finalize_ = false;  // an application's MPI_Finalize calls leave()
  bool may_look_ = false;        // may call MPI even while nothing is under way
  bool has_moved_ = false;       // wake() was called on the thread
  bool has_failed_ = false;      // a world had failed when this process ended
};

}  // namespace tessera::internal::mpi
