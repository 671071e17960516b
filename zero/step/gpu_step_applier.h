#pragma once

#include <memory>
#include <optional>

#include "tessera/core/device/device.h"
#include "tessera/core/step/step_vote.h"
#include "tessera/optim/cuda/api.h"
#include "tessera/optim/cuda/step_decision.h"
#include "tessera/optim/cuda/step_sums.h"
#include "tessera/zero/step/step_applier.h"

namespace tessera::internal {

/// Queues steps on the device. The device itself decides, from sums over all ranks, whether a step
/// is applied, and applies it. Note [Asynchronous step] in gpu_step_applier.cc.
class GpuStepApplier final : public StepApplier, private GradientObserver {
 public:
  /// When commit() knows the outcome of a step. kInStep: before it returns; it waits for the device
  /// and for the other ranks' reports. kInNextStep: in the next step's commit(), or in wait().
  enum class Known : uint8_t { kInStep, kInNextStep };

  /// `optimizer` updates the store's masters, which lie on `device`.
  GpuStepApplier(const Parts& parts, Known known, std::unique_ptr<GpuOptimizer> optimizer,
                 std::shared_ptr<const cuda::Api> api, std::shared_ptr<Device> device);

  FlatOptimizer& optimizer() override { return *optimizer_; }
  GradientObserver* observer() override { return this; }
  bool is_late() const override { return known_ == Known::kInNextStep; }
  std::optional<Outcome> commit(Reducer& reducer, StepVote::RankReport rank_report) override;
  std::optional<Outcome> wait() override;
  void drop() override { sums_.clear(); }
  void drop(size_t parameter) override;
  at::Tensor scale(const at::Tensor& loss) const override;
  bool has_loss_scale() const override { return parts_.options.loss_scale.has_value(); }
  LossScaleState loss_scale() const override { return loss_scale_; }
  void load_loss_scale(LossScaleState state) override;
  int64_t bytes() const override { return vote_.bytes() + sums_.bytes(); }

 private:
  void unreduced(size_t unit, const at::Tensor& buffer) override;

  void collect(Reducer& reducer, const StepVote::RankReport& rank_report);
  void add_gradients(StepVote::RankReport& rank_report);
  std::optional<Outcome> decide_on_host(Reducer& reducer, StepVote::RankReport rank_report);
  void decide_on_device(double divisor);
  void update(Reducer& reducer);
  Outcome outcome_of(const cuda::StepDecision::Reading& reading) const;
  cuda::StepDecision::Reading read();

  const Parts parts_;
  const Known known_;
  std::unique_ptr<GpuOptimizer> optimizer_;
  cuda::StepSums sums_;
  cuda::StepDecision decision_;
  StepVote vote_;
  LossScaleState loss_scale_;  // as last read by the host
  int unread_reports_ = 0;     // number of steps since the ranks' reports were last read
  int64_t step_ = 0;           // number of the last step that was started, for errors
  const std::vector<uint8_t> all_used_;
};

}  // namespace tessera::internal
