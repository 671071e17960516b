#pragma once

#include <cstdint>
#include <memory>

#include "tessera/core/sched/step_times.h"
#include "tessera/work.h"

namespace tessera::internal {

/// A communication, or none. In a sampled step it measures the time that the training thread spends
/// in it. Used by that thread.
class TimedWork {
 public:
  TimedWork() = default;
  /// Begins it by `call`, which returns a Work or null. `times` may be null; else it must outlive
  /// this.
  template <typename Call>
  TimedWork(StepTimes* times, const Call& call) {
    if (times == nullptr || !times->is_sampling()) {
      work_ = call();
      return;
    }
    begun_ = times->begin_communication();
    work_ = call();
    const bool is_done = work_ == nullptr || work_->is_completed();
    times->add_wait(begun_, begun_.ns, is_done);
    if (!is_done) times_ = times;
  }

  /// Null if there is none. What other threads do with the Work is not measured.
  const std::shared_ptr<Work>& work() const { return work_; }

  /// The calls of Work; there must be one.
  bool is_completed() {
    return measured([this] { return work_->is_completed(); });
  }
  void wait() {
    measured([this] {
      work_->wait();
      return true;
    });
  }

 private:
  template <typename Look>
  bool measured(const Look& look) {
    if (times_ == nullptr) return look();
    const int64_t since_ns = times_->now();
    const bool is_done = look();
    times_->add_wait(begun_, since_ns, is_done);
    if (is_done) times_ = nullptr;
    return is_done;
  }

  std::shared_ptr<Work> work_;
  StepTimes* times_ = nullptr;  // until it is done
  StepTimes::Begun begun_ = {};
};

}  // namespace tessera::internal
