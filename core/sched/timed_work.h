#pragma once

#include <cstdint>
#include <memory>

#include "tessera/core/sched/step_times.h"
#include "tessera/work.h"

namespace tessera::internal {

/// A communication, or none. In a sampled step, measures the time that the training thread spends
/// in it. Used by that thread.
class TimedWork {
 public:
  TimedWork() = default;
  /// Begins a communication by `call`, which returns a Work or null. `times` may be null; else it
  /// must outlive the object.
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

  /// Returns the Work; null if there is no communication. Direct calls on the Work are not
  /// measured.
  const std::shared_ptr<Work>& work() const { return work_; }

  /// These forward to the Work, which must exist.
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
  StepTimes* times_ = nullptr;  // null once the communication is complete
  StepTimes::Begun begun_ = {};
};

}  // namespace tessera::internal
