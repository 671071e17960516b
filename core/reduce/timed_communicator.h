#pragma once

#include <cstdint>
#include <memory>

#include "tessera/core/reduce/gradient_communicator.h"
#include "tessera/core/sched/step_times.h"

namespace tessera::internal {

/// Another communicator, whose reductions are timed in steps that are sampled.
class TimedCommunicator final : public GradientCommunicator {
 public:
  /// `times` must outlive it and every Work that it returns.
  TimedCommunicator(std::unique_ptr<GradientCommunicator> inner, StepTimes& times);

  bool keeps_partial_sums() const override { return inner_->keeps_partial_sums(); }
  int stages(Level level) const override { return inner_->stages(level); }
  SumOrder order() const override { return inner_->order(); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return inner_->allocate(numel, dtype);
  }
  void begin_micro_step() override { inner_->begin_micro_step(); }
  std::shared_ptr<Work> start(Level level, const PlannedUnit& unit, const at::Tensor& full,
                              const at::Tensor& part, ReduceOp op, double divisor) override;
  std::shared_ptr<Work> advance(Level level, const PlannedUnit& unit, const at::Tensor& part,
                                const at::Tensor& whole, std::shared_ptr<Work> after) override;
  int64_t sent_bytes(const at::Tensor& full) const override { return inner_->sent_bytes(full); }
  int64_t bytes() const override { return inner_->bytes(); }

 private:
  template <typename Call>
  std::shared_ptr<Work> timed(const Call& call);

  const std::unique_ptr<GradientCommunicator> inner_;
  StepTimes& times_;
};

}  // namespace tessera::internal
