#include "tessera/zero/engine/sharded_engine.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/options/option_table.h"
#include "tessera/zero/engine/comm_hook_registration.h"
#include "tessera/zero/engine/engine_report.h"
#include "tessera/zero/engine/evaluation.h"
#include "tessera/zero/engine/given_gradients.h"
#include "tessera/zero/engine/running_call.h"

namespace tessera::internal {

using Call = Announcements::Call;

ShardedEngine::ShardedEngine(EngineParts parts, Lasting& lasting, Values brought)
    : context_(std::move(parts), lasting),
      trained_(context_, brought),
      gradients_(context_, trained_),
      join_(context_, trained_, gradients_.weight()),
      average_(context_, trained_),
      step_(context_, trained_, gradients_, join_),
      backward_({context_, trained_, gradients_, join_, step_, average_}),
      rules_(context_, trained_, backward_),
      state_(context_, trained_, gradients_, step_) {
  context_.compute.begin();
  context_.times.begin_step();
}

/// Begins a collective call that a rank in a join() without batches cannot follow.
void ShardedEngine::enter(const char* call, Inside inside) {
  join_.announce(Call::kOther, call);
  average_.leave(call, inside);
}

/// Begins one that is made between steps and sees what became of the last one.
void ShardedEngine::begin(const char* call, Inside inside) {
  rules_.require_between_steps(call);
  enter(call, inside);
  step_.learn_outcome();
}

// --- Training ---

StepResult ShardedEngine::step() {
  rules_.require_usable();
  rules_.require_outside_backward("step");
  const RunningCall running(context_.lasting.running, "step");
  join_.announce(Call::kStep, "step");
  average_.leave("step", Inside::kRefused);
  backward_.forget_writes();
  return step_.make();
}

void ShardedEngine::backward(const at::Tensor& loss, const BackwardOptions& options) {
  rules_.require_usable();
  rules_.require_outside_backward("backward");
  backward_.backward(loss, options);
}

void ShardedEngine::accumulate(const std::vector<NamedTensor>& gradients,
                               std::optional<double> weight) {
  rules_.require_usable();
  if (weight.has_value()) backward_.require_weights();
  const at::NoGradGuard no_grad;
  context_.streams.pass();
  const bool is_alone = backward_.accumulates_alone();
  std::string problem = rules_.misplaced();
  const bool is_announced = !is_alone && problem.empty();
  if (is_announced) {
    join_.announce(Call::kAccumulate, "accumulate", weight.has_value());
    average_.leave("accumulate", Inside::kRefused);
  }
  const GivenGradients given = given_gradients(parts().table, gradients);
  if (problem.empty()) problem = given.problem;
  if (problem.empty()) problem = problem_of_weight(weight);
  if (const std::optional<size_t> replaced = gradients_.handles().replaced();
      problem.empty() && replaced.has_value()) {
    problem = absl::StrCat("'", parts().table[*replaced].name,
                           "': .grad was assigned outside the engine; clear it "
                           "(.mutable_grad().reset()) first");
  }
  if (is_alone) {
    TORCH_CHECK(problem.empty(), "[accumulate] rank ", group().rank(), ": ", problem);
  } else {
    step_.learn_outcome();  // it uses the same channel
    context_.failure.guard([&] { refuse_on_all_ranks(group(), problem, "accumulate"); });
  }
  backward_.accumulate(given, weight, is_announced);
}

void ShardedEngine::zero_grad() {
  rules_.require_between_steps("zero_grad");
  join_.announce(Call::kZeroGrad, "zero_grad");
  gradients_.clear();
  gradients_.handles().drop_all();
}

/// Ranks have the same options, so all that call it throw, with nothing under way.
Engine::NoSync ShardedEngine::no_sync() {
  const std::string problem = option_against("no_sync", parts().options);
  TORCH_CHECK(problem.empty(), "[engine] ", problem);
  return Engine::NoSync(context_.lasting.no_sync_depth);
}

void ShardedEngine::micro_step(const std::function<void()>& body) {
  if (parts().options.cuda_graphs) rules_.require_between_steps("micro_step");
  backward_.micro_step(body);
}

JoinScope ShardedEngine::begin_join(JoinOptions options) {
  begin("join", Inside::kRefused);
  return join_.begin(std::move(options), [this] { follow(); });
}

void ShardedEngine::follow() {
  rules_.require_usable();
  rules_.require_outside_backward("join");
  const at::NoGradGuard no_grad;
  join_.follow([this](Call call) { make_followed(call); });
}

/// The same call as on the ranks that have batches, without gradients of this rank.
void ShardedEngine::make_followed(Call call) {
  switch (call) {
    case Call::kAccumulate:
      context_.failure.guard([&] { refuse_on_all_ranks(group(), "", "accumulate"); });
      [[fallthrough]];
    case Call::kMicroStep:
      return backward_.follow(/*is_local=*/false);
    case Call::kLocalMicroStep:
      return backward_.follow(/*is_local=*/true);
    case Call::kStep:
      step();
      return;
    case Call::kZeroGrad:
      return zero_grad();
    case Call::kFollow:
    case Call::kOther:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "nobody follows call ", static_cast<int64_t>(call));
}

void ShardedEngine::begin_call(const char* call) {
  rules_.require_outside_backward(call);
  join_.announce(Call::kOther, call);
}

Mean ShardedEngine::evaluate(const std::function<bool()>& has_batch,
                             const std::function<void(Mean&)>& run_batch) {
  begin("evaluate", Inside::kAllowed);
  const RunningCall running(context_.lasting.running, "evaluate");
  return internal::evaluate(context_, trained_, has_batch, run_batch);
}

void ShardedEngine::set_schedule(Engine::Schedule rate) {
  rules_.require_between_steps("set_schedule");
  context_.lasting.schedule.set(std::move(rate));
}

void ShardedEngine::register_comm_hook(std::shared_ptr<CommHook> hook) {
  begin_change("register_comm_hook");
  internal::register_comm_hook(context_, trained_, std::move(hook));
}

void ShardedEngine::wait() {
  rules_.require_usable();
  step_.learn_outcome();
  context_.failure.guard([&] { trained_.store.finish(); });
}

// --- Parameters ---

void ShardedEngine::modify_parameters(int from_rank, const std::function<void()>& write) {
  begin("modify_parameters", Inside::kRefused);
  context_.failure.abort_all_on_exception("modify_parameters",
                                          [&] { trained_.access.modify(from_rank, write); });
}

Engine::Scope ShardedEngine::full_parameters() {
  begin("full_parameters", Inside::kAllowed);
  return context_.failure.abort_all_on_exception("full_parameters",
                                                 [&] { return trained_.access.open_scope(); });
}

Engine::Scope ShardedEngine::gather(const torch::nn::Module& module) {
  rules_.require_no_update("gather");
  return context_.failure.guard([&] { return trained_.access.gather(module); });
}

Engine::AverageScope ShardedEngine::begin_average() {
  begin("begin_average", Inside::kRefused);
  return average_.begin(step_.steps(), [this] {
    rules_.require_between_steps("end");
    enter("end", Inside::kEnds);
  });
}

uint64_t ShardedEngine::parameter_hash() {
  begin("parameter_hash", Inside::kAllowed);
  return context_.failure.abort_all_on_exception("parameter_hash",
                                                 [&] { return trained_.access.hash(); });
}

// --- State ---

StateDict ShardedEngine::state_dict(StateScope scope, int rank) {
  begin("state_dict", Inside::kRefused);
  const RunningCall running(context_.lasting.running, "state_dict");
  return state_.state_dict(scope, rank);
}

void ShardedEngine::write_state(StateSink& sink) {
  begin("write_state", Inside::kRefused);
  const RunningCall running(context_.lasting.running, "write_state");
  state_.write_state(sink);
}

std::vector<StateOutline> ShardedEngine::state_entries() {
  begin("state_entries", Inside::kRefused);
  const RunningCall running(context_.lasting.running, "state_entries");
  return state_.state_entries();
}

void ShardedEngine::load_state_dict(const StateDict& state, const PartialState& partial) {
  rules_.require_loadable();
  rules_.require_outside_backward("load_state_dict");
  const RunningCall running(context_.lasting.running, "load_state_dict");
  enter("load_state_dict", Inside::kRefused);
  step_.learn_outcome();
  state_.load_state_dict(state, partial);
}

void ShardedEngine::read_state(StateSource& source, const PartialState& partial) {
  rules_.require_loadable();
  rules_.require_outside_backward("read_state");
  const RunningCall running(context_.lasting.running, "read_state");
  enter("read_state", Inside::kRefused);
  step_.learn_outcome();
  state_.read_state(source, partial);
}

// --- Building anew ---

void ShardedEngine::begin_change(const char* call) {
  rules_.require_between_steps(call);
  enter(call, Inside::kRefused);
  TORCH_CHECK(!join_.is_open(), "[engine] ", call,
              ": called inside the loop over join(); call it after the loop");
  step_.learn_outcome();
  context_.failure.abort_all_on_exception(call, [&] {
    trained_.settle();
    gradients_.adopt_cleared();
  });
}

std::string ShardedEngine::problem_of_change(const char* call) {
  for (const Parameter& parameter : parts().table) {
    // Whatever the user has done: the call says what requires grad.
    if (!parameter.is_trainable) parameter.tensor.set_requires_grad(false);
    if (!parameter.is_trainable && parameter.tensor.grad().defined()) {
      return absl::StrCat(call, ": the frozen parameter '", parameter.name,
                          "' has a gradient; clear it (.mutable_grad().reset()) first");
    }
  }
  if (!backward_.is_own_thread()) {
    return absl::StrCat(call,
                        ": called on another thread than parallelize; call it on that thread, "
                        "where backward runs");
  }
  if (gradients_.has_backward() || gradients_.reducer().has_local()) {
    return absl::StrCat(call, ": called after ", gradients_.backwards(),
                        " backward(s) whose gradients no step() has taken; call step() or "
                        "zero_grad() first");
  }
  if (std::string misuse = step_.misuse().before_change(call); !misuse.empty()) return misuse;
  std::string unsaved = step_.registration().unsaved();
  return unsaved.empty() ? "" : absl::StrCat(call, ": ", unsaved);
}

// --- Numbers ---

GatherCounts ShardedEngine::gather_counts() const { return internal::gather_counts(trained_); }

Report ShardedEngine::report() const { return report_of(context_, trained_, gradients_, step_); }

MemorySetting ShardedEngine::memory_setting(int micro_steps) const {
  return internal::memory_setting(context_, trained_, gradients_, micro_steps);
}

}  // namespace tessera::internal
