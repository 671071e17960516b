#include "tessera/zero/engine/rebuildable_engine.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/grad/gradient_hook.h"
#include "tessera/core/layout/own_memory.h"
#include "tessera/core/options/problems.h"
#include "tessera/core/process/error_text.h"
#include "tessera/optim/algorithm/algorithm.h"
#include "tessera/optim/plan/parameter_groups.h"
#include "tessera/zero/engine/engine_plan.h"
#include "tessera/zero/engine/running_call.h"

namespace tessera::internal {

// Note [What trains changes]
// Units, slices and buffers depend on which parameters are trained, so all of them are rebuilt when
// that changes. The old engine gives this rank's 1/N of the state and is destroyed. The new one is
// made in the same memory, so that references into it (Engine::parameters() and the like) hold, and
// takes the state as if it had been saved and loaded. Objects to which users hold references
// outlive both engines (PersistentState). Everything that can be refused is refused on all ranks
// before the old engine is touched; an error after that leaves no engine, on all ranks.
//
// Resident parameters stay readable all the time: the old buffers live until the new ones have
// their values. Split parameters throw when they are read between the two engines, because each
// rank keeps only its 1/N.

namespace {

int64_t bytes_of(const StateDict& state) {
  int64_t bytes = 0;
  for (const auto& [name, entry] : state.entries) {
    for (const StatePiece& piece : entry.pieces)
      bytes += static_cast<int64_t>(piece.values.nbytes());
  }
  return bytes;
}

/// Returns why this rank refuses `call`, which rebuilds `engine`; "" if it does not. Leaves out
/// what begin_change() checks. Local.
std::string problem_of_change(ShardedEngine& engine, const char* call) {
  for (const Parameter& parameter : engine.parts().table) {
    // The user may have set requires_grad of a frozen parameter. Clears it, because `call` decides
    // which parameters require grad.
    if (!parameter.is_trainable) parameter.tensor.set_requires_grad(false);
    if (!parameter.is_trainable && parameter.tensor.grad().defined()) {
      return absl::StrCat(call, ": the frozen parameter '", parameter.name,
                          "' has a gradient; clear it (.mutable_grad().reset()) first");
    }
  }
  if (!engine.backward.is_own_thread()) {
    return absl::StrCat(call,
                        ": called on another thread than parallelize; call it on that thread, "
                        "where backward runs");
  }
  if (engine.gradients.has_backward() || engine.gradients.reducer().has_local()) {
    return absl::StrCat(call, ": called after ", engine.gradients.backwards(),
                        " backward(s) whose gradients no step() has taken; call step() or "
                        "zero_grad() first");
  }
  if (std::string misuse = engine.step.misuse().before_change(call); !misuse.empty()) return misuse;
  std::string unsaved = engine.step.model_changes().unsaved();
  return unsaved.empty() ? "" : absl::StrCat(call, ": ", unsaved);
}

}  // namespace

RebuildableEngine::RebuildableEngine(EngineParts parts, std::shared_ptr<torch::nn::Module> model,
                                     std::vector<NamedTensor> buffers)
    : persistent_{
          .group = parts.group,
          .model = std::move(model),
          .buffers = std::move(buffers),
          .optimizer = std::make_unique<RefusingOptimizer>(parts.optimizer.defaults.clone()),
          .trace = parts.options.trace ? std::make_unique<Trace>() : nullptr} {
  now_.emplace(std::move(parts), persistent_);
}

ShardedEngine& RebuildableEngine::get() {
  if (!origin_.is_here()) {
    const ProcessGroup& group = *persistent_.group;
    throw CommError({"engine", std::string(group.name()), -1, group.rank(), ""},
                    origin_.fork_error(absl::StrCat("rank ", group.rank())));
  }
  if (lost_.has_value()) throw CommError(*lost_);
  return *now_;
}

ShardedEngine& RebuildableEngine::enter(const char* call, AverageInUse::Inside inside, bool mends) {
  ShardedEngine& now = get();
  if (mends) {
    now.require_loadable();
    now.require_outside_backward(call);
  } else {
    now.require_between_steps(call);
  }
  now.join.announce(JoinProtocol::Call::kOther, call);
  now.average.leave(call, inside);
  now.step.learn_outcome();
  return now;
}

ShardedEngine& RebuildableEngine::begin_change(const char* call) {
  ShardedEngine& now = enter(call, AverageInUse::Inside::kRefused);
  TORCH_CHECK(!now.join.is_open(), "[engine] ", call,
              ": called inside the loop over join(); call it after the loop");
  now.context.failure.abort_all_on_exception(call, [&] {
    now.trained.settle();
    now.gradients.adopt_cleared();
  });
  return now;
}

/// Returns the parts from which all ranks build the next engine.
EngineParts RebuildableEngine::agree(const char* call, const Prepare& prepare,
                                     const std::vector<std::string>& arguments) {
  ShardedEngine& now = begin_change(call);
  const RunningCall running(persistent_.running, call);
  std::vector<std::string> problems;
  append(problems, problem_of_change(now, call));
  auto next = attempt(problems, [&] { return prepare(now.parts(), problems); });
  refuse_on_all_ranks(now.context.group, absl::StrJoin(problems, "\n"), "engine");
  require_equal(now.context.group, {call}, "engine");
  std::vector<std::string> lines = arguments;
  append(lines, fingerprint(**next, persistent_.buffers));
  require_equal(now.context.group, lines, call);
  return **std::move(next);
}

StateDict RebuildableEngine::set_trainable(const ParameterPredicate& trains, FrozenState frozen) {
  constexpr const char* kCall = "set_trainable";
  const auto prepare = [&](const EngineParts& now,
                           std::vector<std::string>& problems) -> std::optional<EngineParts> {
    if (!trains) {
      problems.emplace_back(
          "set_trainable: got no predicate, expected one; pass what says of each "
          "parameter whether it is trained");
      return std::nullopt;
    }
    std::vector<bool> is_trainable(now.table.size());
    bool trains_any = false;
    for (size_t i = 0; i < now.table.size(); ++i) {
      is_trainable[i] =
          ask(trains, "set_trainable: its predicate", now.table[i].name, now.table[i].tensor);
      trains_any = trains_any || is_trainable[i];
      const bool is_new = is_trainable[i] && !now.table[i].is_trainable;
      if (is_new && GradientHook::is_taken(now.table[i].tensor)) {
        problems.push_back(absl::StrCat("set_trainable: parameter '", now.table[i].name,
                                        "' has a post-accumulate-gradient hook, which the engine "
                                        "needs; remove it first"));
      }
    }
    if (!trains_any) {
      problems.push_back(absl::StrCat("set_trainable: got a predicate that accepts none of ",
                                      now.table.size(),
                                      " parameters, expected at least one that "
                                      "is trained; correct it (names are those of "
                                      "engine->parameters())"));
      return std::nullopt;
    }
    EngineParts next = now;
    next.group = nullptr;
    next.table = now.table.with_trainable(is_trainable);
    append(problems, problems_of_dimensions(next.optimizer, next.table, next.group_of));
    append(problems, problems_of_whole_states(next.optimizer, next.table, next.group_of));
    std::optional<UnitPlan> plan = plan_units(*persistent_.model, next.table, next.optimizer,
                                              next.options, *now.group, problems);
    if (!plan.has_value()) return std::nullopt;
    next.plan = *std::move(plan);
    return next;
  };
  const auto is_same = [](const Parameter& a, const Parameter& b) {
    return a.is_trainable == b.is_trainable;
  };
  const bool returns = frozen == FrozenState::kReturned;
  EngineParts next =
      agree(kCall, prepare, {returns ? "frozen state returned" : "frozen state dropped"});
  const ParameterTable& table = get().parts().table;
  if (std::equal(table.begin(), table.end(), next.table.begin(), is_same)) {
    for (const Parameter& parameter : table) {
      parameter.tensor.set_requires_grad(parameter.is_trainable);
    }
    return {};
  }
  StateDict left;
  rebuild(kCall, std::move(next), returns ? &left : nullptr);
  return left;
}

void RebuildableEngine::add_group(OptimizerGroup group) {
  constexpr const char* kCall = "add_group";
  const auto prepare = [&](const EngineParts& now,
                           std::vector<std::string>& problems) -> std::optional<EngineParts> {
    const std::vector<std::string> taken = unique_group_names(now.optimizer.groups);
    if (group.name.empty() || std::find(taken.begin(), taken.end(), group.name) != taken.end()) {
      problems.push_back(absl::StrCat("add_group: got the name '", group.name,
                                      "', expected one that no group has, which are '",
                                      absl::StrJoin(taken, "', '"), "'; choose another"));
    }
    EngineParts next = now;
    next.group = nullptr;
    append(problems, append_group(next.optimizer, std::move(group), next.table, next.group_of));
    if (!problems.empty()) return std::nullopt;
    const OptimizerGroup& added = next.optimizer.groups.back();
    for (size_t i = 0; i < now.table.size(); ++i) {
      const Algorithm& had = now.optimizer.algorithm(now.group_of[i]);
      const Algorithm& gets = next.optimizer.algorithm(next.group_of[i]);
      if (!now.table[i].is_trainable || had.name == gets.name) continue;
      problems.push_back(
          absl::StrCat("add_group: group '", added.name, "' selects parameter '", now.table[i].name,
                       "', which ", had.name, " trains, expected options of ", had.name,
                       " too: another algorithm has other states; leave it out, or freeze it first "
                       "(set_trainable) and then unfreeze it"));
    }
    if (!problems.empty()) return std::nullopt;
    std::optional<UnitPlan> plan = plan_units(*persistent_.model, next.table, next.optimizer,
                                              next.options, *now.group, problems);
    if (!plan.has_value()) return std::nullopt;
    return next;
  };
  rebuild(kCall, agree(kCall, prepare, {}), nullptr);
}

void RebuildableEngine::rebuild(const char* call, EngineParts next, StateDict* left) {
  const at::NoGradGuard no_grad;
  ShardedEngine& old = get();
  StateDict stays;
  old.state.take_out(call, next.table, stays, left);
  try {
    const int64_t bytes = bytes_of(stays) + (left != nullptr ? bytes_of(*left) : 0);
    const ParameterTable table = next.table;
    const Values brought =
        next.options.residence == Residence::kSplit ? Values::kLater : Values::kOfParameters;
    std::vector<size_t> homeless;  // parameters that have a place in a unit of the old engine only
    for (size_t i = 0; i < table.size(); ++i) {
      if (old.parts().plan.has_place(i) && !next.plan.has_place(i)) homeless.push_back(i);
    }
    persistent_.meter.add(MemoryClass::kHost, bytes);
    now_.reset();
    for (const size_t index : homeless) move_to_own_memory(table[index].tensor);
    for (const Parameter& parameter : table) {
      parameter.tensor.set_requires_grad(parameter.is_trainable);
    }
    next.group = duplicate(*persistent_.group, absl::StrCat("rebuilt ", ++rebuilds_));
    now_.emplace(std::move(next), persistent_, brought);
    now_->state.put_back(call, std::move(stays));
    persistent_.meter.remove(MemoryClass::kHost, bytes);
  } catch (...) {
    lose(call);
    throw;
  }
}

/// Records the present exception as the reason why there is no engine, and aborts the group, so
/// that peers do not wait for this rank. Called when the old engine is gone and the new one could
/// not be made.
void RebuildableEngine::lose(const char* call) noexcept {
  try {
    throw;
  } catch (const CommError& error) {
    lost_ = error;
  } catch (...) {
    const int rank = persistent_.group->rank();
    const std::string cause =
        absl::StrCat("rank ", rank, " left ", call, " by an exception: ", present_error_text(),
                     "; there is no engine now, load a checkpoint into a new "
                     "one");
    lost_.emplace(CommErrorContext{"engine", std::string(persistent_.group->name()), -1, rank, ""},
                  cause);
  }
  if (persistent_.group->size() > 1) persistent_.group->abort(lost_->cause());
  now_.reset();
}

}  // namespace tessera::internal
