#include "tessera/zero/engine/engine_state.h"

#include <utility>

#include <ATen/core/grad_mode.h>

namespace tessera::internal {

EngineState::EngineState(EngineContext& context, TrainedParameters& trained,
                         StepGradients& gradients, EngineStep& step)
    : context_(context),
      trained_(trained),
      gradients_(gradients),
      step_(step),
      slices_(context.parts.table, context.parts.plan, context.slices, context.persistent.buffers,
              trained.optimizer(), trained.store.masters(), trained.store.flat(),
              trained.average.get(), &context.persistent.comm_hook),
      stream_(context.group, slices_),
      transfer_(context.group, stream_) {}

EngineCounters EngineState::counters() const {
  const LossScaleState loss_scale = trained_.applier->loss_scale();
  return {.steps = step_.steps(),
          .loss_scale = loss_scale.scale,
          .good_steps = loss_scale.good_steps,
          .has_scaler = trained_.applier->has_loss_scale(),
          .averaged = trained_.average != nullptr ? trained_.average->updates() : 0,
          .has_average = trained_.average != nullptr,
          .micro_batches = gradients_.micro_batches().count(),
          .counts_micro_batches = context_.is_any_world_size()};
}

void EngineState::take_counters(const EngineCounters& loaded) {
  step_.set_steps(loaded.steps);
  gradients_.micro_batches().set_count(loaded.micro_batches);
  trained_.applier->load_loss_scale({loaded.loss_scale, loaded.good_steps});
  if (trained_.average != nullptr) trained_.average->set_updates(loaded.averaged);
}

// --- Saving ---

StateDict EngineState::state_dict(StateScope scope, int rank) {
  const at::NoGradGuard no_grad;
  return context_.failure.abort_all_on_exception("state_dict", [&] {
    trained_.store.finish();
    context_.persistent.comm_hook.before_saving(context_.group);
    return transfer_.save(scope, rank, counters(), step_.model_changes().unsaved());
  });
}

StateContents EngineState::agree_to_save(const char* call) {
  return context_.failure.abort_all_on_exception(call, [&] {
    trained_.store.finish();
    context_.persistent.comm_hook.before_saving(context_.group);
    return stream_.agree_to_save(call, counters(), step_.model_changes().unsaved());
  });
}

void EngineState::write_state(StateSink& sink) {
  const at::NoGradGuard no_grad;
  const StateContents contents = agree_to_save("write_state");
  stream_.save(contents, sink);  // local: if the sink throws, no other rank is affected
}

std::vector<StateOutline> EngineState::state_entries() {
  const at::NoGradGuard no_grad;
  return StreamedState::entries(agree_to_save("state_entries"));
}

// --- Loading ---

void EngineState::load_state_dict(const StateDict& state, const PartialState& partial) {
  load("load_state_dict", [&](EngineCounters& loaded) { transfer_.load(state, loaded, partial); });
}

void EngineState::read_state(StateSource& source, const PartialState& partial) {
  load("read_state", [&](EngineCounters& loaded) { stream_.load(source, loaded, partial); });
}

void EngineState::load(const char* call, const std::function<void(EngineCounters&)>& read) {
  const at::NoGradGuard no_grad;
  context_.failure.abort_all_on_exception(call, [&] {
    trained_.settle();
    trained_.access.require_settled(call);
    trained_.store.begin_writing();
    EngineCounters loaded = counters();
    read(loaded);
    take_counters(loaded);
    context_.persistent.schedule.forget();
    gradients_.clear();
    trained_.store.announce();
    context_.failure.mark_consistent();
  });
}

// --- Rebuilding ---

void EngineState::take_out(const char* call, const ParameterTable& next, StateDict& stays,
                           StateDict* left) {
  const at::NoGradGuard no_grad;
  const bool is_split = trained_.store.flat().is_split();
  const auto is_value = [](const StateRegion& region) {
    return region.source == StateRegion::Source::kParameters;
  };
  context_.failure.abort_all_on_exception(call, [&] {
    stays = transfer_.take(
        [&](const StateRegion& region, const StateSlot& slot) {
          if (is_value(region)) return is_split;  // values of resident parameters stay in place
          return !slot.parameter.has_value() || next[*slot.parameter].is_trainable;
        },
        counters());
    if (left == nullptr) return;
    *left = transfer_.take(
        [&](const StateRegion& region, const StateSlot& slot) {
          return !is_value(region) && slot.parameter.has_value() &&
                 !next[*slot.parameter].is_trainable;
        },
        counters());
  });
}

void EngineState::put_back(const char* call, StateDict stays) {
  const at::NoGradGuard no_grad;
  context_.failure.abort_all_on_exception(call, [&] {
    trained_.store.begin_writing();
    EngineCounters loaded = counters();
    transfer_.put_back(std::move(stays), loaded);
    take_counters(loaded);
    trained_.store.announce();
  });
}

}  // namespace tessera::internal
