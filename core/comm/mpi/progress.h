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

/// Why calls fail if they are under way when the progress thread ends, or if they begin later.
inline constexpr const char* kProcessEnds = "this process ends";

/// The progress thread: the only thread of the process in which Tessera calls MPI, so
/// MPI_THREAD_SERIALIZED is enough. The first job starts it. While no call is under way, it polls
/// for other ranks' requests: at least a thousand times a second if other ranks may read windows,
/// otherwise twenty times. But if the application itself uses MPI at MPI_THREAD_SERIALIZED, the
/// thread does not poll while no call is under way and no rank may read, because the application
/// may then call MPI.
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
/// ranks. The wait for MPI_Finalize is short, too. Without a failure this rank waits for the others
/// without limit, and only the wait for MPI_Finalize after that is short: MPICH 4.0 over UCX and
/// TCP may not return from it, and the process then ends without it.
///
/// An MPI that the application has initialised is finalised by the application. This thread leaves
/// its worlds in mpi::leave(), or else in the application's MPI_Finalize. The thread ends when the
/// process does (Note [End of the process]). If the application calls MPI_Finalize only after this
/// thread has ended, the calling thread leaves the worlds.
class Progress {
 public:
  /// Returns the process's only Progress, which is never destroyed.
  static Progress& instance();

  /// Any thread. Has the progress thread run `job` after earlier jobs. `job` must not throw. If the
  /// progress thread has ended, returns false and runs nothing.
  bool post(std::function<void()> job);
  /// Has the progress thread run `job`, and waits for at most `timeout`. Returns false if `job` has
  /// not finished by then; it may still finish later. Throws what `job` throws. If the progress
  /// thread has ended, the calling thread runs `job`.
  bool run(std::function<void()> job, std::chrono::milliseconds timeout);
  /// Any thread. Runs `job` at once if this is the progress thread, else posts it.
  void run_soon(std::function<void()> job);
  /// Any thread. Makes the progress thread look at the worlds soon. Returns false if that thread
  /// has ended.
  bool wake();
  /// Any thread. Leaves all worlds, whose calls then fail with `cause`, and waits until the other
  /// ranks have left them, too. After that, Tessera does not call MPI until the next world is made.
  void leave(const char* cause);
  /// For the progress thread: from now on it advances `world`.
  void attach(std::shared_ptr<World> world) { worlds_.push_back(std::move(world)); }
  /// For the progress thread: returns true if the application may call MPI while nothing is under
  /// way, so that this thread must not call it then.
  bool gives_way() const { return !may_look_; }
  /// For the progress thread: notes that it has initialised this MPI, as the progress threads of
  /// all ranks have. When the process exits, end() finalises this MPI.
  void own(const Calls& calls);
  /// For the progress thread: notes that the application finalises this MPI. Has no effect after
  /// own().
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
  bool hears_finalize_ = false;  // the application's MPI_Finalize will call leave() first
  bool may_look_ = false;        // the thread may call MPI even while nothing is under way
  // Set by wake() on the progress thread: work has advanced, so loop() counts idle rounds from 0.
  bool has_moved_ = false;
  bool has_failed_ = false;  // a world had failed by the time this rank left it
};

}  // namespace tessera::internal::mpi
