// What an engine lets others do with parameters and state between steps; see sharded_engine.cc for
// training.
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "tessera/zero/engine/running_call.h"
#include "tessera/zero/engine/sharded_engine.h"
#include "tessera/zero/step/direction_exchange.h"

namespace tessera::internal {

// --- Reading and writing parameters ---

void ShardedEngine::modify_parameters(int from_rank, const std::function<void()>& write) {
  require_between_steps("modify_parameters");
  enter("modify_parameters", InAverage::kRefused);
  learn_outcome();
  failure_.abort_all_on_exception("modify_parameters", [&] { access_.modify(from_rank, write); });
}

Engine::Scope ShardedEngine::full_parameters() {
  require_between_steps("full_parameters");
  enter("full_parameters", InAverage::kAllowed);
  learn_outcome();
  return failure_.abort_all_on_exception("full_parameters", [&] { return access_.open_scope(); });
}

Engine::Scope ShardedEngine::gather(const torch::nn::Module& module) {
  require_no_update("gather");
  return failure_.guard([&] { return access_.gather(module); });
}

void ShardedEngine::wait() {
  require_usable();
  learn_outcome();
  failure_.guard([&] { store_.finish(); });
}

uint64_t ShardedEngine::parameter_hash() {
  require_between_steps("parameter_hash");
  enter("parameter_hash", InAverage::kAllowed);
  learn_outcome();
  return failure_.abort_all_on_exception("parameter_hash", [&] { return access_.hash(); });
}

// --- State ---

StateDict ShardedEngine::state_dict(StateScope scope, int rank) {
  require_between_steps("state_dict");
  const RunningCall running(lasting_.running, "state_dict");
  enter("state_dict", InAverage::kRefused);
  learn_outcome();
  const at::NoGradGuard no_grad;
  return failure_.abort_all_on_exception("state_dict", [&] {
    store_.finish();
    lasting_.comm_hook.before_saving(*parts_.group);
    return state_transfer_.save(scope, rank, counters(), registration_.unsaved());
  });
}

StreamedState::Saving ShardedEngine::agree_to_save() {
  return failure_.abort_all_on_exception("write_state", [&] {
    store_.finish();
    lasting_.comm_hook.before_saving(*parts_.group);
    return streamed_state_.agree_to_save(counters(), registration_.unsaved());
  });
}

void ShardedEngine::write_state(StateSink& sink) {
  require_between_steps("write_state");
  const RunningCall running(lasting_.running, "write_state");
  enter("write_state", InAverage::kRefused);
  learn_outcome();
  const at::NoGradGuard no_grad;
  const StreamedState::Saving saving = agree_to_save();
  streamed_state_.save(saving, sink);  // local: what the sink throws harms no other rank
}

std::vector<StateOutline> ShardedEngine::state_entries() {
  require_between_steps("write_state");
  const RunningCall running(lasting_.running, "write_state");
  enter("write_state", InAverage::kRefused);
  const at::NoGradGuard no_grad;
  return StreamedState::entries(agree_to_save());
}

void ShardedEngine::load_state_dict(const StateDict& state, const PartialState& partial) {
  load_state("load_state_dict",
             [&](EngineCounters& loaded) { state_transfer_.load(state, loaded, partial); });
}

void ShardedEngine::read_state(StateSource& source, const PartialState& partial) {
  load_state("read_state",
             [&](EngineCounters& loaded) { streamed_state_.load(source, loaded, partial); });
}

void ShardedEngine::take_counters(const EngineCounters& loaded) {
  steps_ = loaded.steps;
  micro_batches_.set_count(loaded.micro_batches);
  commit_->load_loss_scale({loaded.loss_scale, loaded.good_steps});
  if (average_ != nullptr) average_->set_updates(loaded.averaged);
}

void ShardedEngine::load_state(const char* call, const std::function<void(EngineCounters&)>& load) {
  take_failed_gather();
  failure_.require_all_ranks();
  require_outside_backward(call);
  const RunningCall running(lasting_.running, call);
  enter(call, InAverage::kRefused);
  learn_outcome();
  const at::NoGradGuard no_grad;
  failure_.abort_all_on_exception(call, [&] {
    settle();
    access_.require_settled(call);
    store_.begin_writing();
    EngineCounters loaded = counters();
    load(loaded);
    take_counters(loaded);
    lasting_.schedule.forget();
    clear();
    store_.announce();
    failure_.mark_consistent();
  });
}

// --- Numbers ---

MemorySetting ShardedEngine::memory_setting(int micro_steps) const {
  const DirectionExchange* const directions = commit_->directions();
  return {.degrees = parts_.options.degrees,
          .micro_steps = micro_steps,
          .is_split = store_.flat().is_split(),
          .is_shared = store_.is_shared(),
          .updates_in_backward = early_update_ != nullptr,
          .adds_as_tree = is_any_world_size(),
          .units_in_reduction = reducer_.units_in_reduction(),
          .ranks_after_forward = parts_.options.reshard_after_forward,
          .offload = parts_.options.offload,
          .states = commit_->optimizer().states(),
          .optimizer_slice = slices_.optimizer_slice(),
          .has_average = average_ != nullptr,
          .whole_tensor_bytes =
              directions != nullptr ? directions->plan().bytes(directions->rank()) : 0,
          .gathered_direction_bytes = directions != nullptr ? directions->gathered_bytes() : 0,
          .comm_hook_bytes = lasting_.comm_hook.bytes()};
}

}  // namespace tessera::internal
