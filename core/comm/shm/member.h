#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/core/comm/shm/sync.h"
#include "tessera/core/comm/shm/world.h"
#include "tessera/errors.h"

namespace tessera::internal::shm {

/// What a wait waits for, of every rank.
struct Awaited {
  enum class What : uint8_t {
    kPhase,   ///< has entered phase `number`
    kPosted,  ///< has posted call `number`
    kDone,    ///< is done with its part of call `number`
  };
  What what;
  int64_t number;
};

/// This rank's side of one channel: posts calls, waits for the others, and reports every failure as
/// CommError with one cause. See Note [Collective order] and Note [Poison]. Collectives are called
/// by one thread at a time.
class Member {
 public:
  struct Options {
    std::chrono::milliseconds timeout;
    /// A wait as long as this is reported once. 0: none is.
    std::chrono::milliseconds report_after = std::chrono::seconds(5);
    /// How often a wait looks before it sleeps; 0 where ranks outnumber cores.
    int spin_count = 0;
  };

  /// `memory` holds the channel and is kept alive.
  Member(std::shared_ptr<World> world, std::shared_ptr<Segment> memory, Channel& channel, int rank,
         std::string group_name, Options options);
  /// It leaves; not in a child of fork().
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const { return rank_; }
  int size() const { return channel_.size; }
  World& world() { return *world_; }
  const std::shared_ptr<World>& world_ptr() const { return world_; }
  const std::string& group_name() const { return group_name_; }
  const Options& options() const { return options_; }
  /// What holds the channel.
  const std::shared_ptr<Segment>& memory() const { return memory_; }
  Channel& channel() { return channel_; }
  /// The group's own; the world has another.
  const Poison& poison() const { return channel_.poison; }
  int world_rank(int rank) { return channel_.slot(rank).world_rank; }

  /// Throws CommError in a child of fork(), which is no rank, before anything waits or is touched.
  void require_own_process(const char* op, std::string_view tag) const;

  /// A descriptor with the next sequence number. Throws CommError if the group or the world
  /// has failed.
  CallDescriptor next_call(const CallSignature& signature, std::string_view tag);

  /// Posts the call, waits for the calls of all ranks and compares them.
  void post(const CallDescriptor& call);

  /// The parts of post(), for callers that do not wait; see Note [Posted calls]. publish(): local;
  /// all must be done with call number `call.sequence` - ChannelSlot::kCalls. take_up(): once all
  /// have posted it; compares the calls, and is followed by what takes "after post()".
  void publish(const CallDescriptor& call);
  void take_up(int64_t sequence);

  /// Ends a phase: waits until all ranks have ended theirs.
  void arrive_and_wait();

  /// Local. Whether it is true of every rank.
  bool is_true(const Awaited& awaited);
  /// Blocks until it is; goes on with what this rank has posted in any group. `call` is what errors
  /// name.
  void wait(const Awaited& awaited, const CallDescriptor& call);

  /// After post(): fails on every rank unless the slices that the ranks ask for are a permutation.
  void check_slices();

  /// After post(): this rank neither reads nor writes for the call any more.
  void mark_done();
  /// Counts call number `sequence` as finished.
  void count_finished(int64_t sequence) {
    channel_.slot(rank_).collectives.fetch_add(1, std::memory_order_relaxed);
    world_->ring().end(flight_of(sequence));
  }
  /// The same of the call that was posted last.
  void count_finished() { count_finished(taken_up_); }

  /// The posted call of a rank, and the address here of the memory it names. After post(), until
  /// mark_done().
  const CallDescriptor& call_of(int rank) { return channel_.slot(rank).call(taken_up_); }
  /// Throws CommError if the rank has died, c10::Error if it cannot be mapped.
  char* source_of(int rank);

  /// As Channel::name_of().
  std::string name_of(int rank) const { return channel_.name_of(rank); }

  /// Poisons the group and throws CommError with its first cause. `culprit`: the rank of the world
  /// that began it, for the launcher; negative: this one, as far as it knows.
  [[noreturn]] void fail(const std::string& cause, int culprit = -1) {
    fail(call_, cause, culprit);
  }
  [[noreturn]] void fail(const CallDescriptor& call, const std::string& cause, int culprit = -1);

  /// Whether the group or the world has failed, why ("" if not), and the error that names `call`.
  bool has_failed() const { return channel_.poison.is_set() || world_->poison().is_set(); }
  std::string cause() const {
    return channel_.poison.is_set() ? channel_.poison.cause() : world_->poison().cause();
  }
  void throw_if_failed(const CallDescriptor& call) const {
    if (has_failed()) throw error(call, cause());
  }
  CommError error(const CallDescriptor& call, const std::string& cause) const;

  /// Poisons the world; not from a child of fork(). Never throws.
  void abort(std::string_view cause) noexcept;

  /// A blocked call throws CommError soon: this rank is leaving.
  void stop();
  /// Marks this rank as having left, and wakes whoever waits for it.
  void leave();

 private:
  bool holds(const ChannelSlot& slot, const Awaited& awaited) const;
  void wait_slowly(const Awaited& awaited, const CallDescriptor& call);
  void report_wait(const Awaited& awaited, const CallDescriptor& call,
                   std::chrono::steady_clock::duration waited);
  std::vector<int> overdue(const Awaited& awaited) const;
  [[noreturn]] void time_out(const std::vector<int>& missing, const CallDescriptor& call);
  char* begin_of(const SharedRange& range);
  void check_peers(const CallDescriptor& call);
  void check_leavers(const Awaited& awaited, const CallDescriptor& call);
  void wake();
  void report(const CallDescriptor& call, int culprit, const std::string& cause) const;
  std::string call_elsewhere(int rank) const;
  /// "all_reduce SUM float32[10] 'bucket 7' #3 on group 'world'".
  std::string full_name(const CallDescriptor& call) const;
  uint64_t& flight_of(int64_t sequence) { return flights_[sequence % kFlights]; }
  /// The missing rank to name as the cause, numbered in the world: preferably one that is stopped.
  int find_culprit(const std::vector<int>& missing) const;
  std::string names_of(const std::vector<int>& missing) const;

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Segment> memory_;
  Channel& channel_;
  const int rank_;
  const std::string group_name_;
  const Options options_;
  std::atomic<bool> stopping_{false};
  int64_t sequence_ = -1;
  int64_t taken_up_ = -1;  // the call that is worked on
  CallDescriptor call_;    // the last one, for errors
  uint32_t phase_ = 0;
  // Numbers of calls in the flight recorder: of those under way, and of the next one.
  static constexpr int64_t kFlights = 2 * ChannelSlot::kCalls;
  std::array<uint64_t, kFlights> flights_{};
  // Of peers' segments, without the world's lock; the world keeps them.
  std::unordered_map<SegmentId, char*, SegmentId::Hash> bases_;
};

}  // namespace tessera::internal::shm
