#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "tessera/collective.h"
#include "tessera/core/comm/flight_recorder/flight.h"
#include "tessera/core/process/fork.h"
#include "tessera/work.h"

namespace tessera::internal::mpi {

/// A collective, a message or a read of this rank. The progress thread carries it out and ends it;
/// any thread may wait. Keeps the tensors until it has ended.
class Call final : public Work {
 public:
  using Clock = std::chrono::steady_clock;

  /// How long it may take, and when that is worth a report; 0: never.
  struct Patience {
    std::chrono::milliseconds timeout;
    std::chrono::milliseconds report_after;
  };
  /// `sequence` is -1 of a message. `name` is what errors call it, if not by its Op. It is recorded
  /// in `flights`, if there are any.
  Call(Collective collective, std::string group, int rank, int64_t sequence, Patience patience,
       std::shared_ptr<FlightRing> flights, const char* name = nullptr);

  bool is_completed() override;
  void wait() override;
  bool wait_for(std::chrono::milliseconds longest) override;
  int source() const override { return source_; }

  const Collective& collective() const { return collective_; }
  /// Whether what it goes on with (Collective::after) has finished; until then its clock stands
  /// still. Throws what that one failed with.
  bool may_begin();
  const CallSignature& signature() const { return signature_; }
  const std::string& tag() const { return tag_; }
  const char* name() const { return name_; }
  int64_t sequence() const { return sequence_; }
  std::chrono::milliseconds timeout() const { return patience_.timeout; }
  /// How long it has been under way: a collective since it was started or restart_clock(), a
  /// message since wait().
  Clock::duration waited(Clock::time_point now) const {
    const Clock::time_point begin = begin_.load(std::memory_order_relaxed);
    return begin == Clock::time_point::max() ? Clock::duration::zero() : now - begin;
  }
  bool is_late(Clock::time_point now) const { return waited(now) > patience_.timeout; }
  /// Whether it waits long enough for a report; true once. The progress thread's.
  bool is_to_be_reported(Clock::time_point now) {
    if (is_reported_ || patience_.report_after.count() <= 0) return false;
    return is_reported_ = waited(now) > patience_.report_after;
  }
  /// "all_reduce SUM float32[4] 'tag' #3 on group 'world'".
  std::string text() const;
  void restart_clock() { begin_.store(Clock::now(), std::memory_order_relaxed); }

  /// It has ended well; of a receive, from where. What it keeps may be released.
  void finish(int source = -1);
  /// It throws this cause.
  void fail(const std::string& cause);

 private:
  void end(int source, const std::string* cause);

  Collective collective_;
  const CallSignature signature_;
  const std::string tag_;
  const char* const name_;
  const std::string group_;
  const int rank_;
  const int64_t sequence_;
  const Patience patience_;
  std::atomic<Clock::time_point> begin_;
  bool is_reported_ = false;
  Flight flight_;
  const Origin origin_;

  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  bool is_failed_ = false;
  int source_ = -1;
  std::string cause_;
};

}  // namespace tessera::internal::mpi
