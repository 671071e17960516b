#include "tessera/zero/step/cpu_step_applier.h"

#include <span>
#include <utility>

#include <ATen/TensorOperators.h>

#include "tessera/core/sched/trace_span.h"

namespace tessera::internal {

CpuStepApplier::CpuStepApplier(const Parts& parts, std::unique_ptr<CpuOptimizer> optimizer,
                               std::unique_ptr<OffloadedGradients> offloaded)
    : parts_(parts),
      optimizer_(std::move(optimizer)),
      clip_(parts.options, optimizer_->groups(), parts.table, parts.plan, parts.slices),
      offloaded_(std::move(offloaded)),
      early_update_(parts.options.optimizer_in_backward
                        ? std::make_unique<UpdateInBackward>(parts.table, parts.plan, *optimizer_,
                                                             parts.store, parts.trace)
                        : nullptr),
      exchange_(WholeTensorExchange::make(parts.group, parts.plan, parts.slices, parts.options,
                                          parts.table, *optimizer_, parts.meter, parts.trace)),
      vote_(parts.group, parts.table, optimizer_->groups().hyper_parameter_names(), parts.trace,
            clip_.norms()) {
  if (parts.options.loss_scale.has_value()) scaler_.emplace(*parts.options.loss_scale);
}

void CpuStepApplier::drop() {
  if (offloaded_ != nullptr) offloaded_->drop();
}

void CpuStepApplier::drop(size_t parameter) {
  if (offloaded_ != nullptr) offloaded_->drop(parameter);
}

std::optional<StepApplier::Outcome> CpuStepApplier::commit(Reducer& reducer,
                                                           StepVote::RankReport rank_report) {
  parts_.failure.abort_all_on_exception("step()", [&] {
    if (offloaded_ != nullptr) offloaded_->finish(reducer);
    add_gradients(reducer, rank_report);
    vote_.start(rank_report);
  });
  const StepVote::Result result = vote_.finish();
  if (result.non_finite.has_value()) {
    if (early_update_ != nullptr)
      parts_.failure.mark_inconsistent(early_update_->describe(*result.non_finite));
    vote_.require_skip(parts_.options, *result.non_finite);
    const Outcome outcome{.grad_norm = result.grad_norm, .loss_scale = loss_scale().scale};
    if (scaler_.has_value()) scaler_->update(/*overflowed=*/true);
    return outcome;
  }
  if (rank_report.weight == 0.0) return without_weight(loss_scale());

  const double scale = clip_.decide(result.norms, rank_report.gradient_scale());
  parts_.failure.abort_all_on_exception(
      "step()", [&] { apply(reducer, scale, rank_report.step); }, kAfterVote);
  Outcome outcome{
      .committed = true, .grad_norm = result.grad_norm, .loss_scale = rank_report.loss_scale};
  for (const uint8_t used : reducer.used()) outcome.used_parameters += used;
  if (scaler_.has_value()) scaler_->update(/*overflowed=*/false);
  return outcome;
}

void CpuStepApplier::agree_to_update(const StepVote::RankReport& rank_report) {
  parts_.failure.abort_all_on_exception("step()", [&] { vote_.start(rank_report); });
  vote_.finish();
}

/// Adds to the report the norms of this rank's gradients, and how many of their elements are NaN or
/// infinite.
void CpuStepApplier::add_gradients(Reducer& reducer, StepVote::RankReport& rank_report) const {
  const std::span<const int64_t> non_finite =
      offloaded_ != nullptr ? offloaded_->non_finite() : std::span(reducer.non_finite());
  for (size_t i = 0; i < non_finite.size(); ++i) {
    if (non_finite[i] == 0) continue;
    if (rank_report.non_finite == 0) rank_report.non_finite_parameter = static_cast<int64_t>(i);
    rank_report.non_finite += non_finite[i];
  }
  if (early_update_ != nullptr && early_update_->has_begun()) {
    rank_report.norms = {NormSum(early_update_->squares())};
    return;
  }
  GradientNorms norms = clip_.begin(rank_report.gradient_scale());
  if (rank_report.backwards > 0) {
    offloaded_ != nullptr ? offloaded_->add_to(norms) : reducer.add_to(norms);
  }
  rank_report.norms = norms.sums();
}

void CpuStepApplier::apply(Reducer& reducer, double scale, int64_t step) {
  const bool is_averaged = parts_.average != nullptr && parts_.average->is_due(step);
  if (early_update_ != nullptr) early_update_->end();
  if (early_update_ == nullptr || is_averaged) {
    update(reducer, scale, is_averaged ? parts_.average : nullptr);
  }
  parts_.store.show_updates(reducer.used());
}

/// Updates each unit that backward has not updated, and adds all units to `average`, unless that is
/// null. All parameters are averaged, also those that this step has not used. Units with parameters
/// of a whole-tensor algorithm are finished last, after the ranks have exchanged the directions of
/// all such units.
void CpuStepApplier::update(Reducer& reducer, double scale, FlatAverage* average) {
  const TraceSpan span(parts_.trace, TraceTrack::kOptimizer, "update");
  parts_.store.begin_writing();
  const std::vector<uint8_t>& used = reducer.used();
  const auto end = [&](size_t unit) {
    if (early_update_ == nullptr && parts_.plan.is_used(unit, used)) {
      parts_.store.masters().store(unit, parts_.store.flat());
    }
    if (average != nullptr) average->update(unit, parts_.store.masters().values()[unit]);
  };
  for (size_t unit = 0; unit < parts_.plan.trainable_size(); ++unit) {
    if (early_update_ == nullptr && parts_.plan.is_used(unit, used)) {
      const at::Tensor gradient =
          offloaded_ != nullptr ? offloaded_->gradient(unit) : reducer.gradient(unit);
      clip_.clip(unit, gradient);
      optimizer_->update(unit, gradient, parts_.plan[unit].parameters, used, scale);
    }
    if (exchange_ == nullptr || !exchange_->is_awaited(unit)) end(unit);
  }
  if (exchange_ != nullptr) {
    exchange_->run(used);
    for (const size_t unit : exchange_->awaited_units()) {
      optimizer_->whole_tensors()->apply(unit, used);
      end(unit);
    }
  }
  if (average != nullptr) average->count_update();
}

at::Tensor CpuStepApplier::scale(const at::Tensor& loss) const {
  return scaler_.has_value() ? loss * scaler_->scale() : loss;
}

LossScaleState CpuStepApplier::loss_scale() const {
  return scaler_.has_value() ? LossScaleState{scaler_->scale(), scaler_->good_steps()}
                             : LossScaleState{1.0, 0};
}

void CpuStepApplier::load_loss_scale(LossScaleState state) {
  if (scaler_.has_value()) scaler_->load(state.scale, state.good_steps);
}

}  // namespace tessera::internal
