#pragma once

#include <cstdint>
#include <memory>

#include "tessera/core/reduce/counted_group.h"
#include "tessera/core/reduce/gradient_communicator.h"
#include "tessera/core/reduce/registered_hook.h"
#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Gradients as a communication hook sends them; while none is registered, as another communicator
/// does. A hook needs gradients that every rank keeps whole until they are reduced (g = 1), and
/// leaves the result in all of `full`, of which every rank then has its part.
class HookedCommunicator final : public GradientCommunicator {
 public:
  /// References must outlive it. A backward reduces `buckets` units.
  HookedCommunicator(std::unique_ptr<GradientCommunicator> plain, ProcessGroup& group,
                     const ParameterTable& table, size_t buckets, const RegisteredHook& registered);

  bool keeps_partial_sums() const override { return plain_->keeps_partial_sums(); }
  SumOrder order() const override { return plain_->order(); }
  int stages(Level level) const override { return plain_->stages(level); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return plain_->allocate(numel, dtype);
  }
  void begin_micro_step() override { started_ = 0; }
  std::shared_ptr<Work> start(Level level, const PlannedUnit& unit, const at::Tensor& full,
                              const at::Tensor& part, ReduceOp op, double divisor) override;
  std::shared_ptr<Work> advance(Level level, const PlannedUnit& unit, const at::Tensor& part,
                                const at::Tensor& whole, std::shared_ptr<Work> after) override;
  int64_t sent_bytes(const at::Tensor& full) const override;
  int64_t bytes() const override { return plain_->bytes(); }

 private:
  at::Tensor run(const GradBucket& bucket);

  const std::unique_ptr<GradientCommunicator> plain_;
  CountedGroup group_;
  const ParameterTable& table_;
  const size_t buckets_;
  const RegisteredHook& registered_;
  size_t started_ = 0;      // buckets in this micro-step
  int64_t sent_bytes_ = 0;  // of the last bucket
};

}  // namespace tessera::internal
