#include "tessera/core/reduce/timed_communicator.h"

#include <utility>

namespace tessera::internal {
namespace {

/// A collective of a step that is sampled.
class TimedWork final : public Work {
 public:
  TimedWork(std::shared_ptr<Work> inner, StepTimes& times, const StepTimes::Begun& begun)
      : inner_(std::move(inner)), times_(times), begun_(begun) {}

  bool is_completed() override {
    if (is_counted_) return true;
    const int64_t since_ns = times_.now();
    const bool is_completed = inner_->is_completed();
    count(since_ns, is_completed);
    return is_completed;
  }

  void wait() override {
    if (is_counted_) return inner_->wait();
    const int64_t since_ns = times_.now();
    inner_->wait();
    count(since_ns, /*is_done=*/true);
  }

  const std::shared_ptr<Work>& inner() const { return inner_; }

 private:
  void count(int64_t since_ns, bool is_done) {
    times_.add_wait(begun_, since_ns, is_done);
    is_counted_ = is_done;
  }

  const std::shared_ptr<Work> inner_;
  StepTimes& times_;
  const StepTimes::Begun begun_;
  bool is_counted_ = false;  // as done
};

}  // namespace

TimedCommunicator::TimedCommunicator(std::unique_ptr<GradientCommunicator> inner, StepTimes& times)
    : inner_(std::move(inner)), times_(times) {}

template <typename Call>
std::shared_ptr<Work> TimedCommunicator::timed(const Call& call) {
  if (!times_.is_sampling()) return call();
  const StepTimes::Begun begun = times_.begin_communication();
  std::shared_ptr<Work> work = call();
  const bool is_done = work == nullptr || work->is_completed();
  times_.add_wait(begun, begun.ns, is_done);
  if (is_done) return work;
  return std::make_shared<TimedWork>(std::move(work), times_, begun);
}

std::shared_ptr<Work> TimedCommunicator::start(Level level, const PlannedUnit& unit,
                                               const at::Tensor& full, const at::Tensor& part,
                                               ReduceOp op, double divisor) {
  std::shared_ptr<Work> work =
      timed([&] { return inner_->start(level, unit, full, part, op, divisor); });
  if (times_.is_sampling()) times_.add_bytes(inner_->sent_bytes(full));
  return work;
}

std::shared_ptr<Work> TimedCommunicator::advance(Level level, const PlannedUnit& unit,
                                                 const at::Tensor& part, const at::Tensor& whole,
                                                 std::shared_ptr<Work> after) {
  // Whoever goes on with it does so in any thread, where nothing is measured.
  if (const auto* sampled = dynamic_cast<const TimedWork*>(after.get())) after = sampled->inner();
  return timed([&] { return inner_->advance(level, unit, part, whole, std::move(after)); });
}

}  // namespace tessera::internal
