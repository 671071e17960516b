#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "tessera/collective.h"
#include "tessera/core/process/fork.h"
#include "tessera/work.h"

namespace tessera::internal::mpi {

/// A collective, a message or a read of this rank. The progress thread carries it out and ends it;
/// any thread may wait. Keeps the tensors until it has ended.
class Call final : public Work {
 public:
  using Clock = std::chrono::steady_clock;

  /// `sequence` is -1 of a message. `name` is what errors call it, if not by its Op.
  Call(Collective collective, std::string group, int rank, int64_t sequence,
       std::chrono::milliseconds timeout, const char* name = nullptr);

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
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// Of a collective since it was started or restart_clock(); of a message since wait().
  bool is_late(Clock::time_point now) const {
    const Clock::time_point begin = begin_.load(std::memory_order_relaxed);
    return begin != Clock::time_point::max() && now - begin > timeout_;
  }
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
  const std::chrono::milliseconds timeout_;
  std::atomic<Clock::time_point> begin_;
  const Origin origin_;

  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  bool is_failed_ = false;
  int source_ = -1;
  std::string cause_;
};

}  // namespace tessera::internal::mpi
