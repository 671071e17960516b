// What an engine lets others do with parameters and state between steps; see sharded_engine.cc for
// training.
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/error_text.h"
#include "tessera/zero/sharded_engine.h"

namespace tessera {

// --- Reading and writing parameters ---

void ShardedEngine::modify_parameters(int from_rank, const std::function<void()>& write) {
  require_between_steps("modify_parameters");
  learn_outcome();
  const auto write_or_fail = [&] {
    try {
      write();
    } catch (const std::exception& error) {
      failure_.set(absl::StrCat("left modify_parameters by an exception: ", error_text(error)));
      throw;
    }
  };
  failure_.guard(
      [&] { access_.modify(from_rank, write ? std::function<void()>(write_or_fail) : nullptr); });
}

Engine::FullParameters ShardedEngine::full_parameters() {
  require_between_steps("full_parameters");
  learn_outcome();
  return failure_.guard([&] { return access_.open_scope(); });
}

Engine::Gathered ShardedEngine::gather(const torch::nn::Module& module) {
  require_no_update("gather");
  return failure_.guard([&] { return access_.gather(module); });
}

void ShardedEngine::wait() {
  failure_.require_none();
  learn_outcome();
  failure_.guard([&] { store_.finish(); });
}

uint64_t ShardedEngine::parameter_hash() {
  require_between_steps("parameter_hash");
  learn_outcome();
  return failure_.guard([&] { return access_.hash(); });
}

// --- State ---

StateDict ShardedEngine::state_dict(StateScope scope, int rank) {
  require_between_steps("state_dict");
  learn_outcome();
  const at::NoGradGuard no_grad;
  return failure_.guard([&] {
    store_.finish();
    return state_.save(scope, rank, counters());
  });
}

void ShardedEngine::load_state_dict(const StateDict& state) {
  failure_.require_all_ranks();
  require_outside_backward("load_state_dict");
  learn_outcome();
  const at::NoGradGuard no_grad;
  failure_.guard([&] {
    settle();
    access_.require_settled("load_state_dict");
    store_.begin_writing();
    EngineCounters loaded = counters();
    state_.load(state, loaded);
    steps_ = loaded.steps;
    commit_->load_loss_scale({loaded.loss_scale, loaded.good_steps});
    clear();
    store_.announce();
    failure_.mend();
  });
}

// --- Numbers ---

MemorySetting ShardedEngine::memory_setting(int micro_steps) const {
  return {.degrees = parts_.degrees,
          .micro_steps = micro_steps,
          .is_split = store_.flat().is_split(),
          .is_shared = store_.is_shared(),
          .updates_in_backward = early_update_ != nullptr,
          .landing_units = reducer_.landing_units(),
          .ranks_after_forward = parts_.store.gather.ranks_after_forward,
          .offload = parts_.options.offload};
}

}  // namespace tessera
