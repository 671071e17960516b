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

/// The cause of calls that are under way, or begin, when the progress thread has ended.
inline constexpr const char* kProcessEnds = "this process ends";

/// The one thread of the process that calls MPI, so MPI_THREAD_SERIALIZED is enough. While nothing
/// is under way it looks for requests of others twenty times a second, or a thousand times and more
/// where they may read windows. But where an application has an MPI of its own at
/// MPI_THREAD_SERIALIZED it sleeps, for the application may call MPI then. Started by the first
/// call.
///
/// Note [End of MPI]
/// ~~~~~~~~~~~~~~~~~
/// MPI can be initialised once in a process, so an MPI that was initialised here stays until the
/// process ends. Then (atexit) this rank leaves its worlds and waits until the others have, as
/// MPI_Finalize would. Before that it tells the ranks of its host, which may wait for a collective
/// that this rank will never start, that nothing follows what it has begun. If a rank crashes
/// instead, mpirun ends all others.
///
/// After a failure some rank may never come. So the wait is short, and MPI_Abort then ends all
/// ranks; the wait for MPI_Finalize is short, too. It is also short once all ranks have come to
/// MPI_Finalize: MPICH 4.0 over UCX and TCP may not return from it; the process ends by itself.
///
/// An application's own MPI is left to it: this thread lets go at mpi::leave(), or else in the
/// application's MPI_Finalize. After all that the thread ends (Note [End of the process]). If an
/// application finalises its MPI even later, its own thread does what is left.
class Progress {
 public:
  /// Never destroyed.
  static Progress& instance();

  /// Any thread. Runs `job` on the thread, after earlier ones. It must not throw. Returns false,
  /// and runs nothing, once the thread has ended.
  bool post(std::function<void()> job);
  /// Runs `job` and waits, at most that long; false if it has not ended by then (it may yet).
  /// Throws what `job` throws. Once the thread has ended, the calling thread runs it.
  bool run(std::function<void()> job, std::chrono::milliseconds timeout);
  /// Any thread. Runs `job` at once if this is the thread, else posts it.
  void run_soon(std::function<void()> job);
  /// Any thread. Has the thread look at the worlds soon. Returns false once it has ended.
  bool wake();
  /// Any thread. Leaves all worlds, whose calls then fail with `cause`, and waits until their other
  /// ranks have left, too. Then nothing calls MPI until a world is made.
  void leave(const char* cause);
  /// On the thread. From now on `world` is looked at.
  void attach(std::shared_ptr<World> world) { worlds_.push_back(std::move(world)); }
  /// On the thread. Returns true if an application may call MPI when nothing is under way, and this
  /// thread must not.
  bool gives_way() const { return !may_look_; }
  /// On the thread. It has initialised this MPI, as on all ranks, and finalises it at exit.
  void own(const Calls& calls);
  /// On the thread. An application finalises this MPI, unless it is owned.
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
  bool may_look_ = false;        // also while nothing is under way: no application calls MPI then
  bool has_moved_ = false;       // the thread has woken itself
  bool has_failed_ = false;      // a world had failed when this process ended
};

}  // namespace tessera::internal::mpi
