#pragma once

#include <memory>
#include <optional>

#include "tessera/core/step/step_vote.h"
#include "tessera/optim/formulas/loss_scaler.h"
#include "tessera/zero/step/gradient_clip.h"
#include "tessera/zero/step/offloaded_gradients.h"
#include "tessera/zero/step/step_applier.h"
#include "tessera/zero/step/whole_tensor_exchange.h"

namespace tessera::internal {

/// Applies steps on the CPU, after a vote that is one blocking exchange per step. Note [The step is
/// a fence] in engine_step.cc.
class CpuStepApplier final : public StepApplier {
 public:
  /// `optimizer` updates the store's masters. `offloaded` brings gradients from the device; null
  /// where they lie on the host.
  CpuStepApplier(const Parts& parts, std::unique_ptr<CpuOptimizer> optimizer,
                 std::unique_ptr<OffloadedGradients> offloaded = nullptr);

  FlatOptimizer& optimizer() override { return *optimizer_; }
  UpdateInBackward* update_in_backward() override { return early_update_.get(); }
  GradientObserver* observer() override {
    if (early_update_ != nullptr) return early_update_.get();
    return offloaded_.get();
  }
  std::optional<Outcome> commit(Reducer& reducer, StepVote::RankReport rank_report) override;
  void drop() override;
  void drop(size_t parameter) override;
  void agree_to_update(const StepVote::RankReport& rank_report) override;
  at::Tensor scale(const at::Tensor& loss) const override;
  bool has_loss_scale() const override { return scaler_.has_value(); }
  LossScaleState loss_scale() const override;
  void load_loss_scale(LossScaleState state) override;
  const WholeTensorExchange* exchange() const override { return exchange_.get(); }
  int64_t bytes() const override {
    return vote_.bytes() + (offloaded_ != nullptr ? offloaded_->bytes() : 0) +
           (exchange_ != nullptr ? exchange_->control_bytes() : 0);
  }

 private:
  void add_gradients(Reducer& reducer, StepVote::RankReport& rank_report) const;
  void apply(Reducer& reducer, double scale, int64_t step);
  void update(Reducer& reducer, double scale, FlatAverage* average);

  const Parts parts_;
  std::unique_ptr<CpuOptimizer> optimizer_;
  GradientClip clip_;
  std::unique_ptr<OffloadedGradients> offloaded_;   // null: gradients lie on the host
  std::unique_ptr<UpdateInBackward> early_update_;  // null unless backward updates parameters
  std::unique_ptr<WholeTensorExchange> exchange_;   // null: all algorithms are elementwise
  std::optional<LossScaler> scaler_;
  StepVote vote_;
};

}  // namespace tessera::internal
