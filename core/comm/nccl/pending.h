#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/flight_recorder/flight_recorder.h"
#include "tessera/core/comm/nccl/progress.h"
#include "tessera/core/comm/nccl/world.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/progress_report.h"
#include "tessera/errors.h"
#include "tessera/work.h"

namespace tessera::internal::nccl {

/// A collective or message on a lane's stream, or a call without work on the device. Holds its
/// tensors until wait() or, if the Work is dropped before that, until the call has finished. After
/// wait(), later work on the stream that was current in wait() may reuse the tensors' memory, as
/// with LibTorch's CUDA allocator; the CPU may not, because the collective may still be running.
class Pending final : public Work {
 public:
  /// `end` is recorded after the collective; null for a call without work on the device.
  Pending(std::shared_ptr<World> world, std::shared_ptr<Progress> progress, int rank,
          NumberedCall call, std::shared_ptr<Event> end, std::vector<at::Tensor> tensors);

  bool is_completed() override;
  int source() const override {
    return call_.signature.op == Op::kRecv ? call_.signature.peer : -1;
  }

  /// Makes the current stream wait for the collective. Does not block, so the caller may queue more
  /// work at once. Throws CommError if the world has failed by now; a later failure is thrown by
  /// the next call on the group.
  void wait() override;

  /// Blocks until the collective has run. Throws CommError if it failed.
  void wait_on_host();

  /// Notes that the collective is on its stream, with `end` recorded after it.
  void mark_launched() { launched_.store(true, std::memory_order_release); }
  /// Suspends the time-out until rewind(), for a call that is started now and waited for later.
  void hold_clock() { begin_.store(Clock::time_point::max(), std::memory_order_relaxed); }
  /// Restarts the time-out, which counts from now on.
  void rewind() { begin_.store(Clock::now(), std::memory_order_relaxed); }
  /// Marks the call as finished. look() does this for a call on a stream; for a call without work
  /// on the device, whoever completes it calls this.
  void mark_finished() {
    if (!finished_.exchange(true, std::memory_order_acq_rel)) flight_.end();
  }
  /// Sets the call's record in the flight recorder. Called before any other thread knows the call.
  void record(Flight flight) { flight_ = std::move(flight); }

  /// Polls `end`. Returns true if the call has finished without a failure.
  bool look();
  bool is_late(std::chrono::steady_clock::time_point now) const;

  /// Returns true for a collective on a stream, false for a call without work on the device.
  bool is_on_device() const { return end_ != nullptr; }
  Event& end() { return *end_; }
  World& world() const { return *world_; }
  const Progress& progress() const { return *progress_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(progress_->world_ranks().size()); }
  const std::string& group() const { return progress_->group(); }
  const NumberedCall& call() const { return call_; }

  /// Throws CommError if the world has failed.
  void throw_if_failed();
  /// Throws CommError for this call and makes `cause` the cause on all ranks, unless they have one
  /// already.
  [[noreturn]] void fail(const std::string& cause);

  /// Runs this rank's part of a call that has begun. If `body` throws anything but CommError before
  /// the call has finished, fails the world, because the other ranks wait for this one.
  template <typename Body>
  auto carry_out(Body&& body) {
    try {
      return body();
    } catch (const CommError&) {
      throw;
    } catch (...) {
      give_up(present_error_text());
      throw;
    }
  }

  /// Polls is_done() until it returns true. Throws CommError if the world fails first.
  template <typename Condition>
  void await(Condition&& is_done) {
    WaitReport wait;
    for (int64_t looks = 0; !is_done(); ++looks) {
      // A result that is complete counts even after a failure, so that ranks agree on the outcome.
      if (const auto cause = world_->failure(); cause && !is_done()) throw_error(*cause);
      wait.begin();
      if (wait.is_heard() && wait.is_due(Clock::now())) note_wait(wait);
      pause(looks);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  void give_up(const std::string& problem);
  void release();
  void note_wait(WaitReport& wait) const noexcept;
  static void pause(int64_t looks);
  [[noreturn]] void throw_error(const std::string& cause) const;

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Progress> progress_;
  const int rank_;
  const NumberedCall call_;
  const std::shared_ptr<Event> end_;
  std::atomic<Clock::time_point> begin_{Clock::now()};
  std::vector<at::Tensor> tensors_;
  std::atomic<bool> released_{false};
  std::atomic<bool> launched_{false};
  std::atomic<bool> finished_{false};
  Flight flight_;
};

}  // namespace tessera::internal::nccl
