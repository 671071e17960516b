// What changes how an engine trains: communication hooks; what it does before, and another one
// after, it is built anew (see current_engine.cc).
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/process/error_text.h"
#include "tessera/zero/engine/sharded_engine.h"

namespace tessera::internal {

// --- Communication hooks ---

/// What forbids `hook` on this rank; "" for nothing. Prepares it.
std::string ShardedEngine::problem_of_hook(CommHook* hook) const {
  if (hook == nullptr) {
    return "register_comm_hook: got null, expected a hook; pass one (tessera/comm_hook.h)";
  }
  if (lasting_.comm_hook.hook() != nullptr) {
    return absl::StrCat("register_comm_hook: got '", hook->name(), "', but '",
                        lasting_.comm_hook.hook()->name(),
                        "' is registered; register_comm_hook can only be called once");
  }
  if (lasting_.comm_hook.had_backward()) {
    return absl::StrCat("register_comm_hook: got '", hook->name(),
                        "' after a backward, expected it before the first; call it behind "
                        "parallelize");
  }
  if (is_any_world_size()) {
    return reproducible_problem(
        "register_comm_hook",
        "gradients are added in one order over ranks and micro-steps, which a hook does not keep");
  }
  if (const int split = parts_.options.degrees.gradients; split > 1) {
    const std::string_view strategy = to_string(parts_.options.strategy);
    return absl::StrCat("register_comm_hook: '", hook->name(), "': got strategy ",
                        std::string(strategy), ", which splits gradients over ", split,
                        " ranks, expected one under which each rank has them whole; use ddp, zero1 "
                        "or a hybrid with one degree for gradients");
  }
  if (!parts_.group->can().completes_on_host || !parts_.group->device().is_cpu()) {
    return absl::StrCat("register_comm_hook: '", hook->name(), "': got gradients on ",
                        parts_.group->device().str(), ", expected cpu; train without a hook there");
  }
  try {
    RegisteredHook::try_out(*hook, parts_.table, parts_.plan, commit_->has_loss_scale());
  } catch (...) {
    return absl::StrCat("register_comm_hook: '", hook->name(), "': ", present_error_text());
  }
  return "";
}

void ShardedEngine::register_comm_hook(std::shared_ptr<CommHook> hook) {
  constexpr const char* kCall = "register_comm_hook";
  begin_change(kCall);
  const std::string problem = problem_of_hook(hook.get());
  failure_.guard([&] {
    refuse_on_all_ranks(*parts_.group, problem, "comm hook");
    require_equal(*parts_.group, {hook->name(), hook->settings()}, kCall);
  });
  lasting_.comm_hook.accept(std::move(hook), lasting_.meter);
}

// --- Building anew ---

void ShardedEngine::begin_change(const char* call) {
  require_between_steps(call);
  enter(call, InAverage::kRefused);
  TORCH_CHECK(open_join_ == nullptr, "[engine] ", call,
              ": called inside the loop over join(); call it behind the loop");
  learn_outcome();
  failure_.abort_all_on_exception(call, [&] {
    settle();
    adopt_cleared_gradients();
  });
}

std::string ShardedEngine::problem_of_change(const char* call) {
  for (const Parameter& parameter : parts_.table) {
    // Whatever the user has done: the call says what requires grad.
    if (!parameter.is_trainable) parameter.tensor.set_requires_grad(false);
    if (!parameter.is_trainable && parameter.tensor.grad().defined()) {
      return absl::StrCat(call, ": the frozen parameter '", parameter.name,
                          "' has a gradient; clear it (.mutable_grad().reset()) first");
    }
  }
  if (!watch_.is_own_thread()) {
    return absl::StrCat(call,
                        ": called on another thread than parallelize; call it on that thread, "
                        "where backward runs");
  }
  if (backwards_ > 0 || reducer_.has_local()) {
    return absl::StrCat(call, ": called after ", backwards_,
                        " backward(s) whose gradients no step() has taken; call step() or "
                        "zero_grad() first");
  }
  if (std::string misuse = misuse_.before_change(call); !misuse.empty()) return misuse;
  std::string unsaved = registration_.unsaved();
  return unsaved.empty() ? "" : absl::StrCat(call, ": ", unsaved);
}

void ShardedEngine::take_out(const char* call, const ParameterTable& next, StateDict& stays,
                             StateDict* left) {
  const at::NoGradGuard no_grad;
  const bool is_split = store_.flat().is_split();
  // Values of resident parameters stay in their tensors.
  const auto is_carried = [&](const StateRegion& region) {
    return region.source != StateRegion::Source::kParameters || is_split;
  };
  failure_.abort_all_on_exception(call, [&] {
    stays = state_transfer_.take(
        [&](const StateRegion& region, const StateSlot& slot) {
          const bool is_value = region.source == StateRegion::Source::kParameters;
          return is_carried(region) &&
                 (is_value || !slot.parameter.has_value() || next[*slot.parameter].is_trainable);
        },
        counters());
    if (left == nullptr) return;
    *left = state_transfer_.take(
        [&](const StateRegion& region, const StateSlot& slot) {
          const bool is_value = region.source == StateRegion::Source::kParameters;
          return !is_value && slot.parameter.has_value() && !next[*slot.parameter].is_trainable;
        },
        counters());
  });
}

void ShardedEngine::put_back(const char* call, StateDict stays) {
  const at::NoGradGuard no_grad;
  failure_.abort_all_on_exception(call, [&] {
    store_.begin_writing();
    EngineCounters loaded = counters();
    state_transfer_.put_back(std::move(stays), loaded);
    take_counters(loaded);
    store_.announce();
  });
}

}  // namespace tessera::internal
