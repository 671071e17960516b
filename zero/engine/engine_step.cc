#include "tessera/zero/engine/engine_step.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "tessera/core/process/progress_report.h"

namespace tessera::internal {

// Note [The step is a fence]
// Parameters change only in step(), modify_parameters(), load_state_dict() and read_state(), and at
// the start and the end of an average. Between these calls no rank changes a byte that another may
// read. step() first finishes every reduction, then votes; ranks write only after a unanimous vote.
// A rank that finds an error (a parameter written outside modify_parameters(), an open scope, no
// backward, a non-finite gradient) puts it into its report instead of throwing, so that all ranks
// throw together. If a rank throws anyway (out of memory, say), the engine fails on all ranks:
// EngineFailure::abort_all_on_exception().

EngineStep::EngineStep(EngineContext& context, TrainedParameters& trained, StepGradients& gradients,
                       JoinLoop& join)
    : context_(context),
      trained_(trained),
      gradients_(gradients),
      join_(join),
      misuse_(context.parts.table, trained.store, trained.access, gradients.dot_grads(),
              trained.optimizer(), trained.early_update),
      model_changes_(*context.persistent.model, context.parts.table, context.parts.options),
      buffers_(SyncedBuffers::make(context.group, context.persistent.buffers,
                                   context.parts.options.buffers)) {
  if (buffers_ != nullptr) context_.persistent.meter.add(MemoryClass::kControl, buffers_->bytes());
}

EngineStep::~EngineStep() {
  if (buffers_ != nullptr)
    context_.persistent.meter.remove(MemoryClass::kControl, buffers_->bytes());
}

/// Runs `body`, which votes or waits for a vote. If the vote refuses an asynchronous step, restores
/// the last agreed history. If it refuses a synchronous step that has not updated in backward,
/// restores the learning rates that were in force before this step.
template <typename Body>
auto EngineStep::guard_late(Body&& body) {
  try {
    return body();
  } catch (const CommError&) {
    throw;
  } catch (const c10::Error&) {
    if (trained_.applier->is_late()) {
      gradients_.take_back_step();
    } else if (!trained_.is_updated()) {
      context_.persistent.schedule.take_back(trained_.optimizer().groups());
    }
    throw;
  }
}

StepResult EngineStep::make() {
  EngineFailure& failure = context_.failure;
  const at::NoGradGuard no_grad;
  context_.times.begin_update();
  report_phase(Phase::kStep);
  context_.streams.pass();
  learn_outcome();  // before this step's report is written
  if (!trained_.is_updated()) {
    apply_schedule();
    failure.guard([&] { join_.take_hyper_parameters(); });
  }
  return context_.persistent.last_result = failure.guard([&] {
    failure.abort_all_on_exception("step()", [&] {
      trained_.settle();
      if (!trained_.is_updated()) gradients_.adopt_cleared();
    });
    reduce_what_is_left();
    StepVote::RankReport mine = failure.abort_all_on_exception("step()", [&] {
      gradients_.reducer().finish();
      StepVote::RankReport report = rank_report(find_misuse());
      // Sends the buffers' values beside the vote; the buffers change in finish(), after the vote.
      if (buffers_ != nullptr) buffers_->start(join_.ranks_with_batches());
      return report;
    });

    const std::optional<StepApplier::Outcome> outcome =
        guard_late([&] { return trained_.applier->commit(gradients_.reducer(), std::move(mine)); });
    return failure.abort_all_on_exception(
        "step()",
        [&] {
          if (buffers_ != nullptr) buffers_->finish();
          return begin_next(outcome);
        },
        StepApplier::kAfterVote);
  });
}

/// Notes the step in the history, clears the gradients for the next step, and returns the result to
/// show to the user. Called when all ranks have agreed to the step or, under asynchronous steps,
/// have queued it.
StepResult EngineStep::begin_next(const std::optional<StepApplier::Outcome>& outcome) {
  gradients_.note_step(steps_, trained_.applier->is_late() || outcome->committed);
  const double weight = gradients_.weight().sum().value_or(0.0);
  last_.used = gradients_.reducer().used();
  last_.reductions = std::max(gradients_.reductions(), 1);
  context_.times.end_step();
  gradients_.clear();
  ++steps_here_;
  if (context_.parts.options.keep_freed_memory) huge_page_pace_.after_step();
  if (!outcome.has_value()) return context_.persistent.last_result;
  StepResult result = result_of(*outcome);
  result.weight = weight;
  return result;
}

void EngineStep::learn_outcome() {
  context_.failure.guard([&] {
    const std::optional<StepApplier::Outcome> outcome =
        guard_late([&] { return trained_.applier->wait(); });
    if (!outcome.has_value()) return;
    context_.persistent.last_result = result_of(*outcome);
    gradients_.note_agreement();
  });
}

void EngineStep::agree_to_update() {
  const StepVote::RankReport mine = context_.failure.abort_all_on_exception("backward", [&] {
    trained_.store.finish();
    apply_schedule();
    std::string misuse = misuse_.before_updating_backward(*context_.persistent.no_sync_depth > 0);
    if (misuse.empty()) misuse = schedule_problem_;
    if (misuse.empty()) misuse = find_untrained();
    StepVote::RankReport report = rank_report(std::move(misuse));
    report.backwards = 1;
    return report;
  });
  try {
    trained_.applier->agree_to_update(mine);
  } catch (const c10::Error&) {
    context_.persistent.schedule.take_back(trained_.optimizer().groups());
    throw;
  }
  trained_.early_update->begin();
}

/// Sets the learning rates that the schedule gives for the next update; if it gives none,
/// schedule_problem_ says why. Called when the number of updates is known, before ranks compare
/// their hyper-parameters.
void EngineStep::apply_schedule() {
  schedule_problem_ = context_.persistent.schedule.apply(steps_, trained_.optimizer().groups());
}

/// Sets the number of updates applied so far, and reports it to the launcher, which uses it to see
/// whether the job fails at the same step again.
void EngineStep::set_steps(int64_t steps) {
  steps_ = steps;
  report_step(steps);
}

/// Returns the result of a step whose outcome is known. Counts the step if it was committed.
StepResult EngineStep::result_of(const StepApplier::Outcome& outcome) {
  if (outcome.committed) {
    set_steps(steps_ + 1);
    report_step_end(context_.group.can().completes_on_host);
  }
  return {.committed = outcome.committed,
          .step = steps_,
          .grad_norm = outcome.grad_norm,
          .loss_scale = outcome.loss_scale,
          .used_parameters = outcome.used_parameters};
}

StepVote::RankReport EngineStep::rank_report(std::string misuse) {
  StepVote::RankReport report;
  report.step = steps_ + 1;
  report.backwards = gradients_.backwards();
  report.history = gradients_.history();
  if (trained_.store.gathered() != nullptr) report.gathers = trained_.store.gathered()->history();
  report.gradient_edits = gradients_.dot_grads().count_edits();
  trained_.optimizer().groups().append_hyper_parameters(report.hyper_parameters);
  report.loss_scale = trained_.applier->loss_scale().scale;
  report.weight = gradients_.weight().sum();
  report.divisor = gradients_.weight().divisor();
  report.misuse = std::move(misuse);
  if (trained_.is_updated()) {
    report.if_refused =
        "What backward has updated takes effect in a step() that all ranks agree to.";
  }
  return report;
}

/// Reduces the gradients that no_sync() left on this rank. A rank whose backward gave no gradients
/// takes part with zeros, because peers may have some. If an earlier reduction has found that ranks
/// differ in their gradients, reduces nothing, because peers may have nothing to reduce; the vote
/// then refuses the step, because the ranks' histories differ.
void EngineStep::reduce_what_is_left() {
  if (gradients_.reducer().ranks_differ()) return;
  const bool is_idle = gradients_.is_idle();
  if (!is_idle && !gradients_.reducer().has_local()) return;
  gradients_.dot_grads().count_edits();
  if (trained_.early_update != nullptr) agree_to_update();
  if (is_idle) gradients_.count_backward();
  const bool is_objected = context_.failure.abort_all_on_exception("step()", [&] {
    gradients_.begin(Reducer::Mode::kReduce, /*factor=*/1.0);
    return gradients_.end(/*objects=*/false);
  });
  if (is_objected) gradients_.refuse("");
}

/// Returns why this rank refuses the step; "" if it does not.
std::string EngineStep::find_misuse() const {
  if (trained_.applier->has_loss_scale() && !gradients_.was_scaled() && gradients_.has_backward()) {
    return "backward was called on a loss without engine->scale(loss), which loss_scale needs";
  }
  const StepWeight& weight = gradients_.weight();
  if (!weight.problem().empty()) return weight.problem();
  if (weight.sum() == 0.0 && context_.parts.options.on_non_finite == NonFinite::kStop) {
    return "the weights of this step's backwards are 0 on all ranks, so there is no mean to apply; "
           "engine->zero_grad() drops these gradients, NonFinite::kSkip skips such steps";
  }
  if (!schedule_problem_.empty()) return schedule_problem_;
  std::string misuse = gradients_.micro_batches().problem(gradients_.backwards());
  if (misuse.empty()) misuse = misuse_.before_step();
  if (misuse.empty() && buffers_ != nullptr) misuse = buffers_->problem();
  return misuse.empty() && !trained_.is_updated() ? find_untrained() : misuse;
}

/// Returns which trainable parameters (and, if steps sync them, buffers) were added to or removed
/// from the model since parallelize; "" if none. Looks only at steps 1, 2, 4, 8, ..., because
/// walking a model allocates memory, and other work of a step does not.
std::string EngineStep::find_untrained() const {
  const bool is_due = std::has_single_bit(static_cast<uint64_t>(steps_here_ + 1));
  return is_due ? model_changes_.untrained() : "";
}

}  // namespace tessera::internal
