#include "tessera/zero/step/gpu_step_applier.h"

#include <utility>

#include <c10/util/Exception.h>

#include <ATen/TensorOperators.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/core/sched/trace_span.h"
#include "tessera/optim/cuda/step_words.h"

namespace tessera::internal {

// Note [Asynchronous step]
// A step depends on a few hundred 64-bit words: the sum of squares, counts of non-finite elements,
// which parameters are used, whether a rank refuses, and a hash of everything that must be equal on
// all ranks. Each rank writes its words on the device, one all_reduce adds them up, and a kernel
// computes from the sums whether the step applies. Every device gets the same result. If the step
// does not apply, the kernels that follow change nothing. So the host queues a whole step without
// knowing its result.
// In the next step() the host reads copies of the result and of the words, which have long arrived.
// If the step was refused, it also reads the other ranks' reports, which were sent through the host
// channel in the meantime and contain the error texts that a hash cannot carry. Otherwise it does
// not read the reports (N ranks would make N * N requests to a store), except those of every 64th
// step, so that earlier reports can be deleted. Errors are those of a synchronous step, one step
// later. By then no rank has applied anything of the refused step, and the host has run only the
// next step's forward and backward, on parameters that did not change.

namespace {

constexpr int kMaxUnreadReports = 64;

}  // namespace

GpuStepApplier::GpuStepApplier(const Parts& parts, Known known,
                               std::unique_ptr<GpuOptimizer> optimizer,
                               std::shared_ptr<const cuda::Api> api, std::shared_ptr<Device> device)
    : parts_(parts),
      known_(known),
      optimizer_(std::move(optimizer)),
      sums_(parts.table, parts.plan, parts.slices, api, device),
      decision_(parts.table.size(), parts.options.max_grad_norm, parts.options.loss_scale, api,
                device),
      vote_(parts.group, parts.table, optimizer_->groups().hyper_parameter_names(), parts.trace),
      loss_scale_{parts.options.loss_scale ? parts.options.loss_scale->initial : 1.0, 0},
      all_used_(parts.table.size(), uint8_t{1}) {}

void GpuStepApplier::unreduced(size_t unit, const at::Tensor& buffer) {
  sums_.count_non_finite(unit, buffer);
}

void GpuStepApplier::drop(size_t parameter) {
  sums_.words().narrow(0, cuda::kNonFiniteAt + static_cast<int64_t>(parameter), 1).zero_();
}

std::optional<StepApplier::Outcome> GpuStepApplier::commit(Reducer& reducer,
                                                           StepVote::RankReport rank_report) {
  std::optional<Outcome> outcome = wait();
  parts_.failure.abort_all_on_exception("step()", [&] { collect(reducer, rank_report); });
  if (!is_late()) return decide_on_host(reducer, std::move(rank_report));

  rank_report.if_refused =
      "Nothing of that step, the step() before this one (Options::asynchronous_step), was applied; "
      "its "
      "gradients and those since are dropped.";
  step_ = rank_report.step;
  const bool refuses = !rank_report.misuse.empty();
  const double divisor = rank_report.divisor;
  parts_.failure.abort_all_on_exception("step()", [&] {
    vote_.start(std::move(rank_report));
    decide_on_device(divisor);
    if (!refuses) update(reducer);  // if this rank refuses, no device applies the step
    parts_.store.show_updates(all_used_);
  });
  return outcome;
}

/// Writes what this rank contributes to the sums of the step (Note [Asynchronous step]).
void GpuStepApplier::collect(Reducer& reducer, const StepVote::RankReport& rank_report) {
  // An earlier attempt at the step, which was refused, may have left sums.
  sums_.words().narrow(0, 0, cuda::kNonFiniteAt).zero_();
  for (size_t unit = 0; unit < parts_.plan.trainable_size(); ++unit) {
    const at::Tensor& value = reducer.value(unit);
    if (value.defined()) sums_.add_squares(unit, value, reducer.kept(unit).begin);
  }
  sums_.write_own_words(reducer.used(), StepVote::hash(rank_report), !rank_report.misuse.empty());
}

/// For steps that are not asynchronous. Votes through the host first, as CpuStepApplier does, so
/// that an error on any rank stops the step before anything is applied. Then the device decides and
/// applies. Waits for the device and for the other ranks.
std::optional<StepApplier::Outcome> GpuStepApplier::decide_on_host(
    Reducer& reducer, StepVote::RankReport rank_report) {
  parts_.failure.abort_all_on_exception("step()", [&] {
    add_gradients(rank_report);
    vote_.start(rank_report);
  });
  const StepVote::Result result = vote_.finish();
  if (result.non_finite.has_value()) {
    vote_.require_skip(parts_.options, *result.non_finite);
  } else if (rank_report.weight == 0.0) {
    return without_weight(loss_scale_);
  }
  step_ = rank_report.step;
  return parts_.failure.abort_all_on_exception(
      "step()",
      [&] {
        decide_on_device(rank_report.divisor);
        if (!result.non_finite.has_value()) {
          update(reducer);
          parts_.store.show_updates(reducer.used());
        }
        return outcome_of(read());
      },
      kAfterVote);
}

/// Adds what the device has counted in this rank's gradients to the report. Waits for the device.
void GpuStepApplier::add_gradients(StepVote::RankReport& rank_report) {
  const at::Tensor own = sums_.words().cpu();
  const std::span<const int64_t> words(own.const_data_ptr<int64_t>(),
                                       static_cast<size_t>(own.numel()));
  rank_report.norms = {
      NormSum(ExactSum::load(words.subspan<cuda::kSquaresAt, ExactSum::kWords>()))};
  for (size_t i = 0; i < parts_.table.size(); ++i) {
    const int64_t count = words[static_cast<size_t>(cuda::kNonFiniteAt) + i];
    if (count == 0) continue;
    if (rank_report.non_finite == 0) rank_report.non_finite_parameter = static_cast<int64_t>(i);
    rank_report.non_finite += count;
  }
}

void GpuStepApplier::decide_on_device(double divisor) {
  const TraceSpan span(parts_.trace, TraceTrack::kVote, "outcome");
  parts_.group.all_reduce(sums_.words(), ReduceOp::kSum, "sums of the step")->wait();
  decision_.decide(sums_.words(), parts_.group.size(), divisor);
  decision_.start_reading(sums_.words());
}

void GpuStepApplier::update(Reducer& reducer) {
  const TraceSpan span(parts_.trace, TraceTrack::kOptimizer, "update");
  optimizer_->advance(decision_.outcome(), sums_.used());
  for (size_t unit = 0; unit < parts_.plan.trainable_size(); ++unit) {
    const at::Tensor& value = reducer.value(unit);
    if (!value.defined()) continue;
    optimizer_->update(unit, value, parts_.store.masters().target(unit, parts_.store.flat()));
  }
}

std::optional<StepApplier::Outcome> GpuStepApplier::wait() {
  if (decision_.pending() == 0) return std::nullopt;
  const cuda::StepDecision::Reading reading =
      parts_.failure.abort_all_on_exception("step()", [&] { return read(); });
  const bool is_agreed = reading.agreed && !reading.refused;
  if (is_agreed && ++unread_reports_ < kMaxUnreadReports) {
    vote_.drop();
  } else {
    unread_reports_ = 0;
    vote_.finish();
    TORCH_INTERNAL_ASSERT(is_agreed, "the device refused a step that the reports agree to");
  }
  return outcome_of(reading);
}

cuda::StepDecision::Reading GpuStepApplier::read() {
  cuda::StepDecision::Reading reading = decision_.read();
  if (has_loss_scale()) loss_scale_ = reading.scale;
  return reading;
}

/// Returns the outcome that the device has decided on. Under asynchronous steps, throws if the step
/// was not applied, unless NonFinite::kSkip allows skipping it.
StepApplier::Outcome GpuStepApplier::outcome_of(const cuda::StepDecision::Reading& reading) const {
  Outcome outcome{.committed = reading.outcome.applies != 0,
                  .grad_norm = reading.outcome.grad_norm,
                  .loss_scale = reading.outcome.loss_scale};
  if (outcome.committed) {
    for (const uint8_t used : reading.used) outcome.used_parameters += used;
    return outcome;
  }
  if (!is_late() || parts_.options.on_non_finite == NonFinite::kSkip) return outcome;
  NonFiniteReport report{.step = step_, .loss_scale = reading.outcome.loss_scale, .gradients = {}};
  for (size_t i = 0; i < reading.non_finite.size() && report.gradients.empty(); ++i) {
    if (reading.non_finite[i] == 0) continue;
    report.gradients.push_back(
        {NonFiniteGradient::kAllRanks, parts_.table[i].name, reading.outcome.non_finite});
  }
  if (report.gradients.empty()) report.gradients.push_back({0, "", 0});
  TORCH_CHECK(
      false, describe_gradients(report),
      ". Nothing of that step, the step() before this one (Options::asynchronous_step), was "
      "applied; its gradients and those since are dropped");
}

at::Tensor GpuStepApplier::scale(const at::Tensor& loss) const {
  return has_loss_scale() ? loss * decision_.scale().to(loss.scalar_type()) : loss;
}

void GpuStepApplier::load_loss_scale(LossScaleState state) {
  if (!has_loss_scale()) return;
  decision_.load(state);
  loss_scale_ = state;
}

}  // namespace tessera::internal
