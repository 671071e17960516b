#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/flight_recorder/flight_recorder.h"
#include "tessera/core/comm/meeting/shared_table.h"
#include "tessera/core/comm/nccl/api.h"
#include "tessera/core/comm/nccl/communicator.h"
#include "tessera/core/comm/nccl/progress.h"
#include "tessera/core/device/device.h"
#include "tessera/nccl_options.h"

namespace tessera::internal::nccl {

class Pending;

/// Options of a world, for all its groups.
struct WorldOptions {
  /// Why this rank cannot take part, or "" if it can. If it cannot, `api` and `device` may be null.
  std::string problem = {};
  std::shared_ptr<const Api> api = {};  ///< load_api()
  /// This rank's device.
  std::shared_ptr<Device> device = {};
  /// The ranks agree through this table; kept as long as the world. It must be new for each world,
  /// or ranks would take the id of an earlier world.
  std::shared_ptr<SharedTable> table;
  int rank = 0;
  int size = 1;
  /// Limit from the call of a collective to its end on the device. Range: > 0, at most kMaxTimeOut.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// How often the table is asked whether another rank has failed. Range: > 0.
  std::chrono::milliseconds table_poll = std::chrono::milliseconds(500);
  /// How often communicators are polled for errors, and events for completion, while anything is in
  /// flight. Range: > 0.
  std::chrono::milliseconds local_poll = std::chrono::milliseconds(10);
  /// Options for memory and copy engines.
  NcclOptions nccl = {};
};

/// Why a world fails.
struct Cause {
  std::string text;           ///< "" if it does not fail
  int culprit = -1;           ///< the rank of the world that caused it; negative: this one
  bool is_published = false;  ///< another rank has published it
};

/// A world as one rank sees it: the state that all groups of the world share. Owns the thread that
/// watches the groups.
///
/// Note [Watch]
/// ~~~~~~~~~~~~
/// No thread waits for collectives on a device. Instead a watch thread per rank polls the events of
/// pending collectives (time-outs), the communicators (asynchronous errors) and the table (failures
/// of other ranks). Any thread that notices a failure proposes a cause; the watch thread reports it
/// to the launcher (Note [First failure]) and publishes it in the table. The first cause published
/// is the cause on all ranks. Then the thread aborts all communicators of the world, which ends
/// what hangs on the device. A cause that another rank has published is not reported to the
/// launcher again. A cause that is proposed while the process ends is still published. Only the
/// watch thread destroys and aborts communicators, so an NCCL call that hangs there hangs no other
/// thread. No thread joins the watch thread. It ends when the last group and the last communicator
/// are destroyed, or when the process ends (Note [End of the process]); communicators that remain
/// then are left alone.
///
/// Note [Calls that do not fit]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
/// shm compares every call before it touches data. With NCCL a comparison would cost a round trip
/// through the table and block the caller, where the launch itself costs microseconds. So, as in
/// PyTorch, nothing is compared in advance: every rank keeps a record of its last calls, at a
/// time-out the ranks exchange these records, and the error names the rank that is missing or the
/// two calls that differ. Calls that go through the table anyway are compared at once: subgroup(),
/// all_gather_on_host(), the first reduce_scatter() of a group, and making a window.
class World : public std::enable_shared_from_this<World> {
 public:
  /// Local. Returns a new world: starts its watch thread and enters `all`, the group of all ranks.
  static std::shared_ptr<World> start(WorldOptions options, std::shared_ptr<Progress> all);
  ~World();

  const WorldOptions& options() const { return options_; }

  /// Any thread. Begins to make `cause` the cause of failure on all ranks, unless they have one
  /// already.
  void propose(std::string_view cause) noexcept;
  /// Returns the cause of failure, if there is one, after waiting for a limited time until it is
  /// published and communicators are aborted.
  std::optional<std::string> failure();
  bool is_failed() const { return failed_.load(std::memory_order_acquire); }

  /// Watches a call until it has finished.
  void watch(std::shared_ptr<Pending> pending);

  /// Registers a new group (enter()) or a new communicator (adopt()) of this world.
  void enter(std::shared_ptr<Progress> progress);
  void adopt(std::shared_ptr<Communicator> communicator);
  /// Called when a group is destroyed. Destroys its communicators when nothing is in flight on them
  /// any more, or else aborts them. Keeps `streams` until then.
  void leave(const std::shared_ptr<Progress>& progress,
             std::vector<std::shared_ptr<Communicator>> communicators,
             std::vector<std::shared_ptr<Stream>> streams) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Leaving;
  struct Answers;

  World(WorldOptions options, std::shared_ptr<Progress> all);
  void run();
  void end();
  bool sleep();
  std::string proposal();
  Cause look();
  std::shared_ptr<Communicator> find_failed(Result& state);
  Cause look_at_pending();
  Cause look_at_table();
  Cause explain(const Pending& pending);
  Cause name_lost(Cause cause);
  Answers ask(const Progress& progress, int64_t sequence);
  void answer(const std::string& inquiry);
  void say_left(const std::string& group, const std::string& report) noexcept;
  std::string publish(const Cause& cause);
  void settle(const Cause& cause);
  void drop();
  void take_down();
  bool has_pending(const std::string& group);

  const WorldOptions options_;
  const std::shared_ptr<Progress> all_;  // this rank's progress on the group of all ranks
  std::atomic<bool> failed_{false};
  const std::shared_ptr<FlightRing> flights_ = std::make_shared<FlightRing>();

  std::mutex mutex_;
  std::condition_variable changed_;  // there is work for the watch thread
  std::condition_variable settled_;
  std::string proposal_;
  std::string cause_;
  bool is_down_ = false;  // everything in a failed world has been ended
  bool gave_up_ = false;  // no longer waits for is_down_
  std::list<std::shared_ptr<Pending>> pending_;
  std::vector<std::shared_ptr<Communicator>> communicators_;
  std::map<std::string, std::shared_ptr<Progress>> progress_;  // by group, destroyed ones included
  std::list<Leaving> leaving_;
  int groups_ = 0;
  bool is_ending_ = false;

  // For the watch thread only.
  Clock::time_point next_look_;
  bool answered_ = false;
  bool table_lost_ = false;
};

}  // namespace tessera::internal::nccl
