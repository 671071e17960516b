#include "tessera/zero/engine/step_gradients.h"

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/process/progress_report.h"
#include "tessera/errors.h"

namespace tessera::internal {

StepGradients::StepGradients(EngineContext& context, TrainedParameters& trained)
    : context_(context),
      trained_(trained),
      weight_(context.group, context.parts.plan),
      reducer_(context.group, context.parts.table, context.parts.plan, context.slices,
               reducer_setting(), context.persistent.meter, history_,
               context.persistent.trace.get()),
      dot_grads_(context.parts.table, reducer_.gradient_views()),
      micro_batches_(context.parts.options.reproducible, context.group.rank(), context.group.size(),
                     context.persistent.micro_batches) {
  context_.persistent.meter.add(MemoryClass::kControl, weight_.bytes());
}

StepGradients::~StepGradients() {
  dot_grads_.hide_all();
  context_.persistent.meter.remove(MemoryClass::kControl, weight_.bytes());
}

Reducer::Setting StepGradients::reducer_setting() {
  using Agreement = Reducer::Setting::Agreement;
  const ResolvedOptions& options = context_.parts.options;
  return {.on_release =
              options.poison_freed ? BufferPool::OnRelease::kPoison : BufferPool::OnRelease::kKeep,
          .divisor = options.gradient_divisor,
          .observer = trained_.applier->observer(),
          .order = context_.is_any_world_size() ? SumOrder::kBinaryTree : SumOrder::kRanks,
          .hook = &context_.persistent.comm_hook,
          .agreement = trained_.applier->is_late() ? Agreement::kInStep : Agreement::kInBackward,
          .learns_order = options.reorder_reductions,
          .units_in_reduction = options.units_in_reduction,
          .times = &context_.times};
}

// --- A micro-step ---

void StepGradients::begin(Reducer::Mode mode, double factor) {
  reducer_.begin_micro_step(mode, factor);
  if (mode == Reducer::Mode::kReduce) ++reductions_;
}

void StepGradients::receive(size_t index, const at::Tensor& gradient) {
  if (!trained_.store.flat().lives_here(index)) return;
  reducer_.receive(index, gradient.detach());
}

void StepGradients::count_backward() {
  ++backwards_;
  micro_batches_.end();
}

bool StepGradients::end(bool objects) {
  bool is_objected = false;
  try {
    BackwardAgreement::Report report = weight_.report();
    report.objects = objects || !weight_.problem().empty();
    is_objected = reducer_.end_micro_step(report);
    if (reducer_.has_exchanged()) weight_.collect(reducer_.agreement());
  } catch (const ErrorOnAllRanks&) {
    show();  // so that users can clear .grad
    throw;
  }
  if (trained_.early_update != nullptr) trained_.early_update->finish(reducer_);
  show();
  return is_objected || (reducer_.has_exchanged() && !weight_.problem().empty());
}

void StepGradients::refuse(const std::string& problem) {
  context_.failure.guard([&] {
    refuse_on_all_ranks(context_.group, problem.empty() ? weight_.problem() : problem, "grad");
  });
}

void StepGradients::count_replayed() {
  count_backward();
  was_scaled_ = true;
  show();
}

// --- What users do to `.grad` ---

void StepGradients::adopt_cleared() {
  const DotGradViews::Cleared cleared = dot_grads_.cleared();
  if (cleared.all) {
    clear();
    return;
  }
  for (const size_t index : cleared.parameters) {
    dot_grads_.forget(index);
    reducer_.drop(index);
    trained_.applier->drop(index);
    history_.record(RollingHash::Event::kDrop, static_cast<int64_t>(index));
  }
}

void StepGradients::show() {
  const bool is_partial = reducer_.ranks_differ() || !micro_batches_.is_sum_complete(backwards_);
  for (size_t i = 0; i < context_.parts.table.size(); ++i) {
    const bool is_local = reducer_.local()[i] != 0;
    if (!is_local && reducer_.used()[i] == 0) continue;
    dot_grads_.show(i, is_local || is_partial ? DotGradViews::Content::kLocal
                                              : DotGradViews::Content::kReduced);
  }
}

void StepGradients::clear() {
  context_.streams.pass();
  dot_grads_.hide_all();
  reducer_.clear();
  if (trained_.early_update != nullptr) trained_.early_update->end();
  trained_.applier->drop();
  weight_.clear();
  micro_batches_.clear();
  backwards_ = 0;
  reductions_ = 0;
  saw_other_backward_ = false;
  was_scaled_ = false;
  history_ = history_at_step_;
  context_.compute.begin();
  context_.times.begin_step();
  report_phase(Phase::kForward);
}

// --- The history ---

void StepGradients::note_step(int64_t step, bool counts) {
  note_agreement();
  if (!counts) return;
  history_.record(RollingHash::Event::kStep, step);
  history_at_step_ = history_;
}

void StepGradients::take_back_step() {
  history_at_step_ = history_agreed_;
  clear();
}

}  // namespace tessera::internal
