#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/collective.h"
#include "tessera/core/comm/flight_recorder/flight_recorder.h"
#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/process/fork.h"
#include "tessera/errors.h"
#include "tessera/time_out.h"
#include "tessera/work.h"

namespace tessera::internal {

class Link;
class Member;
class RemoteMemory;
class Transfer;

/// How long a rank waits for another rank.
struct Patience {
  std::chrono::milliseconds timeout;
  /// A wait that lasts longer is reported once; 0: no wait is reported.
  std::chrono::milliseconds report_after = std::chrono::seconds(5);
};

/// Results of a call other than data: a subgroup or a window. Set after all ranks have called.
struct Made {
  std::unique_ptr<Link> link;            ///< a subgroup's link; null on ranks outside it
  std::shared_ptr<RemoteMemory> memory;  ///< a window's memory
  std::string problem;                   ///< why nothing was made; the same text on all ranks
};

/// A collective or a message that this rank has called. Its Member runs and ends it; any thread may
/// wait for it. It keeps its tensors until it has ended.
class Call final : public Work {
 public:
  using Clock = std::chrono::steady_clock;

  /// The rank that calls, and its group. All calls of a Member share one Caller.
  struct Caller {
    std::weak_ptr<Member> member;
    Origin origin;  ///< the rank's process
    std::string group;
    int rank = 0;
    int number = 0;  ///< the rank's number in the job
  };
  /// The call's arguments. `ranks`: the ranks of the subgroup that the call makes.
  struct Form {
    Collective collective;
    int64_t sequence = -1;
    bool has_thread = false;  ///< a background thread advances the call
    std::vector<int> ranks = {};
    const char* name = nullptr;  ///< the name in errors; null: that of its Op
  };
  Call(std::shared_ptr<const Caller> caller, Form form, std::shared_ptr<FlightRing> flights);
  ~Call() override;

  bool is_completed() override;
  void wait() override;
  bool wait_for(std::chrono::milliseconds longest) override;
  int source() const override { return source_; }

  /// Returns the call's arguments. Its tensors are valid until the call has ended.
  const Collective& collective() const { return form_.collective; }
  const CallRecord& record() const { return record_; }
  const std::string& tag() const { return tag_; }
  const std::shared_ptr<const Caller>& caller() const { return caller_; }
  const std::string& group() const { return caller_->group; }
  const char* name() const;
  int64_t sequence() const { return form_.sequence; }
  const std::vector<int>& ranks() const { return form_.ranks; }
  bool is_message() const { return form_.sequence < 0; }
  bool has_thread() const { return form_.has_thread; }
  /// Returns a description such as "all_reduce SUM float32[4] 'tag' #3 on group 'world'".
  std::string text() const;
  CommError error(const std::string& cause) const;

  // For the call's Member only, one thread at a time.

  /// Returns true if the call need not wait for Collective::after: there is none, or
  /// it has completed. Rethrows its error.
  bool may_begin();
  std::unique_ptr<Transfer>& transfer() { return transfer_; }
  /// Returns true once the ranks' calls were found equal.
  bool is_compared() const { return is_compared_; }
  void set_compared() { is_compared_ = true; }
  Made& made() { return made_; }

  /// Called for a receive when its message has arrived: `rank` has sent the message.
  void set_source(int rank) { source_ = rank; }
  /// Ends the call without an error, and drops the tensors.
  void finish() { end(std::nullopt); }
  /// Ends the call with an error: wait() throws CommError with this cause.
  void fail(const std::string& cause) { end(cause); }

  /// Records the call in `flights`, unless it is recorded already. For calls that are recorded only
  /// if they take long.
  void record(const std::shared_ptr<FlightRing>& flights);

  /// Returns true if the call has ended, with or without an error.
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  /// Blocks until the call ends, at most for `longest`, without advancing it. Returns true if it
  /// has ended.
  bool await_end(std::chrono::milliseconds longest = kMaxTimeOut);

  /// Returns true once the call's Member has accepted it (Member::accept()).
  bool is_accepted() const { return is_accepted_.load(std::memory_order_relaxed); }
  void set_accepted() { is_accepted_.store(true, std::memory_order_relaxed); }

  /// Makes the next waited() restart the call's clock. The clock does not run before the first
  /// restart_clock() or start_clock().
  void restart_clock() { clock_.store(Clock::time_point::min(), std::memory_order_relaxed); }
  /// Makes the next waited() start the clock, unless the clock was started before.
  void start_clock() {
    Clock::time_point none = Clock::time_point::max();
    clock_.compare_exchange_strong(none, Clock::time_point::min());
  }
  /// Returns how long the call has been waited for: the time on its clock; 0 if the clock has not
  /// started.
  Clock::duration waited(Clock::time_point now) {
    Clock::time_point begin = Clock::time_point::min();
    if (clock_.compare_exchange_strong(begin, now)) {
      is_reported_ = false;
      return Clock::duration::zero();
    }
    return begin == Clock::time_point::max() ? Clock::duration::zero() : now - begin;
  }
  /// Returns true at the first call after the clock has reached `after`, once for each start of the
  /// clock. Always returns false if `after` is 0.
  bool is_to_be_reported(Clock::time_point now, std::chrono::milliseconds after) {
    if (is_reported_ || after.count() <= 0 || waited(now) < after) return false;
    return is_reported_ = true;
  }

 private:
  void end(std::optional<std::string> cause);

  const std::shared_ptr<const Caller> caller_;
  Form form_;
  const std::string tag_;
  const CallRecord record_;
  Flight flight_;
  std::unique_ptr<Transfer> transfer_;
  bool is_compared_ = false;
  Made made_;
  std::atomic<Clock::time_point> clock_{Clock::time_point::max()};
  std::atomic<bool> is_reported_{false};
  std::atomic<bool> is_accepted_{false};

  std::atomic<bool> is_over_{false};
  int source_ = -1;
  std::optional<std::string> cause_;
  std::mutex mutex_;
  std::condition_variable ended_;
};

}  // namespace tessera::internal
