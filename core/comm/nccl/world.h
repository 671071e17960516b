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
  std::shared_ptr<const Api> api = {};  ///< NCCL's functions, from load_api()
  /// This rank's device.
  std::shared_ptr<Device> device = {};
  /// The table through which the ranks agree. The world keeps it. Every world needs a new table: in
  /// the table of an earlier world, ranks would find the id of that world's communicator and take
  /// it.
  std::shared_ptr<SharedTable> table;
  int rank = 0;
  int size = 1;
  /// The longest time from the call of a collective to its end on the device. Range: > 0, at most
  /// kMaxTimeOut.
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
  int culprit = -1;           ///< the world rank of the rank that caused it; negative: this rank
  bool is_published = false;  ///< another rank has published it
};

/// A world as one rank sees it: the state that all groups of the world share. Owns the thread that
/// watches the groups.
///
/// Note [Watch]
/// ~~~~~~~~~~~~
/// No thread waits for collectives on a device. Instead a watch thread per rank polls the events of
/// pending collectives to notice time-outs, the communicators to notice asynchronous errors, and
/// the table to notice failures of other ranks. Any thread that notices a failure proposes a cause;
/// the watch thread reports it to the launcher (Note [First failure]) and publishes it in the
/// table. The first cause published is the cause on all ranks. Then the watch thread aborts all
/// communicators of the world, which ends what hangs on the device. A cause that another rank has
/// published is not reported to the launcher again. A cause that is proposed while the process ends
/// is still published. Only the watch thread destroys and aborts communicators, so an NCCL call
/// that hangs there hangs no other thread. An abort may wait for all work on the device
/// (Communicator::abort_together()). So the communicators of a failed world are aborted together,
/// and while a world goes on none is aborted beside a call in flight: if that call hung, the thread
/// that has to notice it would wait for it. No thread joins the watch thread. It ends when the last
/// group and the last communicator are destroyed, or when the process ends (Note [End of the
/// process]); communicators that remain then are left alone.
///
/// Note [Calls that do not fit]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
/// shm compares every call before it touches data. With NCCL a comparison would cost a round trip
/// through the table and block the caller; the launch itself costs microseconds. So, as in PyTorch,
/// nothing is compared in advance. Every rank keeps a record of its last calls; at a time-out the
/// ranks exchange these records, and the error names the rank that is missing or the two calls that
/// differ. Calls that go through the table anyway are compared at once: subgroup(),
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
  /// Returns the cause of the world's failure, or nullopt if it has not failed. Before it returns a
  /// cause, waits for a limited time until the cause is published and the communicators are
  /// aborted.
  std::optional<std::string> failure();
  bool is_failed() const { return failed_.load(std::memory_order_acquire); }

  /// Watches a call until it has finished.
  void watch(std::shared_ptr<Pending> pending);

  /// Registers a new group (enter()) or a new communicator (adopt()) of this world.
  void enter(std::shared_ptr<Progress> progress);
  void adopt(std::shared_ptr<Communicator> communicator);
  /// Called when a group is destroyed. Destroys its communicators once nothing is in flight on
  /// them, or aborts them at the time-out or when the world fails. Keeps `streams` until then.
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
  bool has_pending(std::string_view group = {});

  const WorldOptions options_;
  const std::shared_ptr<Progress> all_;  // how far this rank has come in the group of all ranks
  std::atomic<bool> failed_{false};
  const std::shared_ptr<FlightRing> flights_ = std::make_shared<FlightRing>();

  std::mutex mutex_;
  std::condition_variable changed_;  // notified when the watch thread may have work
  std::condition_variable settled_;
  std::string proposal_;
  std::string cause_;
  // The communicators of the failed world have been aborted, and its calls dropped.
  bool is_down_ = false;
  bool gave_up_ = false;  // failure() has waited for is_down_ in vain; later calls do not wait
  std::list<std::shared_ptr<Pending>> pending_;
  std::vector<std::shared_ptr<Communicator>> communicators_;
  // This rank's Progress in each group, by the group's name. Destroyed groups keep their entries.
  std::map<std::string, std::shared_ptr<Progress>> progress_;
  std::list<Leaving> leaving_;
  int groups_ = 0;
  bool is_ending_ = false;

  // For the watch thread only.
  Clock::time_point next_look_;
  bool answered_ = false;
  bool table_lost_ = false;
};

}  // namespace tessera::internal::nccl
