#include "tessera/engine.h"

#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/options/option_table.h"
#include "tessera/memory_formula.h"
#include "tessera/zero/engine/comm_hook_registration.h"
#include "tessera/zero/engine/engine_report.h"
#include "tessera/zero/engine/evaluation.h"
#include "tessera/zero/engine/given_gradients.h"
#include "tessera/zero/engine/open_average.h"
#include "tessera/zero/engine/open_join.h"
#include "tessera/zero/engine/rebuildable_engine.h"
#include "tessera/zero/engine/running_call.h"

namespace tessera {
using namespace internal;

namespace {

using Call = JoinProtocol::Call;
using Inside = AverageInUse::Inside;

/// Makes `call`, as the ranks with batches do, but without gradients from this rank.
void make_followed(Engine& engine, ShardedEngine& now, Call call) {
  switch (call) {
    case Call::kAccumulate:
      now.context.failure.guard([&] { refuse_on_all_ranks(now.context.group, "", "accumulate"); });
      [[fallthrough]];
    case Call::kMicroStep:
      return now.backward.follow(/*is_local=*/false);
    case Call::kLocalMicroStep:
      return now.backward.follow(/*is_local=*/true);
    case Call::kStep:
      engine.step();
      return;
    case Call::kZeroGrad:
      return engine.zero_grad();
    case Call::kFollow:
    case Call::kOther:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "nobody follows call ", static_cast<int64_t>(call));
}

MemorySetting setting_of(const ShardedEngine& engine, int micro_steps) {
  return memory_setting(engine.context, engine.trained, engine.gradients, micro_steps);
}

}  // namespace

Engine::Engine(std::unique_ptr<RebuildableEngine> implementation)
    : implementation_(std::move(implementation)) {}

Engine::~Engine() {
  if (!implementation_->origin().is_here()) never_destroy(std::move(implementation_));
}

// --- Training ---

StepResult Engine::step() {
  ShardedEngine& now = implementation_->get();
  now.require_usable();
  now.require_outside_backward("step");
  const RunningCall running(now.context.persistent.running, "step");
  now.join.announce(Call::kStep, "step");
  now.average.leave("step", Inside::kRefused);
  now.backward.forget_writes();
  return now.step.make();
}

torch::optim::Optimizer& Engine::optimizer() {
  return *implementation_->get().context.persistent.optimizer;
}

void Engine::backward(const at::Tensor& loss, const BackwardOptions& options) {
  ShardedEngine& now = implementation_->get();
  now.require_usable();
  now.require_outside_backward("backward");
  now.backward.backward(loss, options);
}

at::Tensor Engine::scale(const at::Tensor& loss) {
  return implementation_->get().backward.scale(loss);
}

double Engine::loss_scale() const {
  return implementation_->get().trained.applier->loss_scale().scale;
}

void Engine::accumulate(const std::vector<NamedTensor>& gradients, std::optional<double> weight) {
  ShardedEngine& now = implementation_->get();
  now.require_usable();
  const at::NoGradGuard no_grad;
  now.context.streams.pass();
  const bool is_alone = now.backward.accumulates_alone();
  std::string problem = now.misplaced();
  const bool is_announced = !is_alone && problem.empty();
  if (is_announced) {
    now.join.announce(Call::kAccumulate, "accumulate", weight.has_value());
    now.average.leave("accumulate", Inside::kRefused);
  }
  const ParameterTable& table = now.parts().table;
  const GivenGradients given = given_gradients(table, gradients);
  if (problem.empty()) problem = given.problem;
  if (problem.empty() && weight.has_value()) {
    problem = now.backward.refusal_of_weights(/*is_known_in_backward=*/false);
  }
  if (problem.empty()) problem = problem_of_weight(weight);
  if (const std::optional<size_t> replaced = now.gradients.dot_grads().replaced();
      problem.empty() && replaced.has_value()) {
    problem = absl::StrCat("'", table[*replaced].name,
                           "': .grad was assigned outside the engine; clear it "
                           "(.mutable_grad().reset()) first");
  }
  ProcessGroup& group = now.context.group;
  if (is_alone) {
    TORCH_CHECK(problem.empty(), "[accumulate] rank ", group.rank(), ": ", problem);
  } else {
    // First finish the vote of an asynchronous step, because refuse_on_all_ranks() uses the same
    // channel.
    now.step.learn_outcome();
    now.context.failure.guard([&] { refuse_on_all_ranks(group, problem, "accumulate"); });
  }
  now.backward.accumulate(given, weight, is_announced);
}

void Engine::zero_grad() {
  ShardedEngine& now = implementation_->get();
  now.require_between_steps("zero_grad");
  now.join.announce(Call::kZeroGrad, "zero_grad");
  now.gradients.clear();
  now.gradients.dot_grads().drop_all();
}

bool Engine::has_gradients() const { return implementation_->get().gradients.has_backward(); }

/// Throws if the options exclude no_sync(). All ranks that call it throw then, because all ranks
/// have the same options. No communication has begun at that point.
Engine::NoSync Engine::no_sync() {
  const EngineContext& context = implementation_->get().context;
  const std::string problem = option_against("no_sync", context.parts.options);
  TORCH_CHECK(problem.empty(), "[engine] ", problem);
  return NoSync(context.persistent.no_sync_depth);
}

void Engine::micro_step(const std::function<void()>& body) {
  ShardedEngine& now = implementation_->get();
  if (now.parts().options.cuda_graphs) now.require_between_steps("micro_step");
  now.backward.micro_step(body);
}

void Engine::register_comm_hook(std::shared_ptr<CommHook> hook) {
  ShardedEngine& now = implementation_->begin_change("register_comm_hook");
  internal::register_comm_hook(now.context, now.trained, std::move(hook));
}

JoinScope Engine::begin_join(JoinOptions options) {
  ShardedEngine& now = implementation_->enter("join", Inside::kRefused);
  return now.join.begin(std::move(options), [this, &now] {
    now.require_usable();
    now.require_outside_backward("join");
    const at::NoGradGuard no_grad;
    now.join.follow([&](Call call) { make_followed(*this, now, call); });
  });
}

JoinScope::~JoinScope() {
  if (open_ != nullptr && open_->follow) open_->is_left = true;
}

void JoinScope::follow() {
  TORCH_CHECK(!open_->is_followed,
              "[join] loop: ran a second time, expected once; call engine->join() for each loop");
  open_->is_followed = true;
  // A copy, because the end of the loop clears open_->follow.
  const std::function<void()> follow = open_->follow;
  if (follow) follow();
}

void Engine::begin_call(const char* call) {
  ShardedEngine& now = implementation_->get();
  now.require_outside_backward(call);
  now.join.announce(Call::kOther, call);
}

Mean Engine::evaluate_batches(const std::function<bool()>& has_batch,
                              const std::function<void(Mean&)>& run_batch) {
  ShardedEngine& now = implementation_->enter("evaluate", Inside::kAllowed);
  const RunningCall running(now.context.persistent.running, "evaluate");
  return internal::evaluate(now.context, now.trained, has_batch, run_batch);
}

void Engine::set_schedule(Schedule rate) {
  ShardedEngine& now = implementation_->get();
  now.require_between_steps("set_schedule");
  now.context.persistent.schedule.set(std::move(rate));
}

void Engine::wait() {
  ShardedEngine& now = implementation_->get();
  now.require_usable();
  now.step.learn_outcome();
  now.context.failure.guard([&] { now.trained.store.finish(); });
}

const StepResult& Engine::last_result() const {
  return implementation_->get().context.persistent.last_result;
}

int64_t Engine::steps() const { return implementation_->get().step.steps(); }

int64_t Engine::micro_batch() const {
  return implementation_->get().gradients.micro_batches().next();
}

// --- Parameters ---

void Engine::modify_parameters(int from_rank, const std::function<void()>& write) {
  ShardedEngine& now = implementation_->enter("modify_parameters", Inside::kRefused);
  now.context.failure.abort_all_on_exception("modify_parameters",
                                             [&] { now.trained.access.modify(from_rank, write); });
}

Engine::Scope Engine::full_parameters() {
  ShardedEngine& now = implementation_->enter("full_parameters", Inside::kAllowed);
  return now.context.failure.abort_all_on_exception(
      "full_parameters", [&] { return now.trained.access.open_scope(); });
}

Engine::Scope Engine::gather(const torch::nn::Module& module) {
  ShardedEngine& now = implementation_->get();
  now.require_no_update("gather");
  return now.context.failure.guard([&] { return now.trained.access.gather(module); });
}

Engine::AverageScope Engine::begin_average() {
  ShardedEngine& now = implementation_->enter("begin_average", Inside::kRefused);
  return now.average.begin(now.step.steps(),
                           [this] { implementation_->enter("end", Inside::kEnds); });
}

Engine::AverageScope::~AverageScope() {
  if (open_ != nullptr) open_->is_dropped = true;
}

void Engine::AverageScope::end() {
  TORCH_CHECK(
      open_ != nullptr,
      "[engine] end: got a scope of begin_average() that has ended or was moved from, expected "
      "an open one; call end() once");
  TORCH_CHECK(open_->end, "[engine] end: the engine is gone; end the scope before it is destroyed");
  const std::function<void()> end = open_->end;
  end();
  open_.reset();
}

uint64_t parameter_hash(Engine& engine) {
  ShardedEngine& now = engine.implementation_->enter("parameter_hash", Inside::kAllowed);
  return now.context.failure.abort_all_on_exception("parameter_hash",
                                                    [&] { return now.trained.access.hash(); });
}

// --- State ---

StateDict Engine::set_trainable(const ParameterPredicate& trains, FrozenState frozen) {
  return implementation_->set_trainable(trains, frozen);
}

void Engine::add_group(OptimizerGroup group) { implementation_->add_group(std::move(group)); }

StateDict Engine::state_dict(StateScope scope, int rank) {
  ShardedEngine& now = implementation_->enter("state_dict", Inside::kRefused);
  const RunningCall running(now.context.persistent.running, "state_dict");
  return now.state.state_dict(scope, rank);
}

void Engine::write_state(StateSink& sink) {
  ShardedEngine& now = implementation_->enter("write_state", Inside::kRefused);
  const RunningCall running(now.context.persistent.running, "write_state");
  now.state.write_state(sink);
}

std::vector<StateOutline> Engine::state_entries() {
  ShardedEngine& now = implementation_->enter("state_entries", Inside::kRefused);
  const RunningCall running(now.context.persistent.running, "state_entries");
  return now.state.state_entries();
}

void Engine::load_state_dict(const StateDict& state, const PartialState& partial) {
  ShardedEngine& now = implementation_->enter("load_state_dict", Inside::kRefused, /*mends=*/true);
  const RunningCall running(now.context.persistent.running, "load_state_dict");
  now.state.load_state_dict(state, partial);
}

void Engine::read_state(StateSource& source, const PartialState& partial) {
  ShardedEngine& now = implementation_->enter("read_state", Inside::kRefused, /*mends=*/true);
  const RunningCall running(now.context.persistent.running, "read_state");
  now.state.read_state(source, partial);
}

// --- What it is made of ---

Strategy Engine::strategy() const { return implementation_->get().parts().options.strategy; }

const ParameterTable& Engine::parameters() const { return implementation_->get().parts().table; }

ProcessGroup& Engine::group() { return *implementation_->persistent().group; }

const Degrees& Engine::degrees() const { return implementation_->get().parts().options.degrees; }

const UnitPlan& Engine::units() const { return implementation_->get().parts().plan; }

// --- What it holds and has done ---

GatherCounts Engine::gather_counts() const {
  return internal::gather_counts(implementation_->get().trained);
}

Report Engine::report() const {
  const ShardedEngine& now = implementation_->get();
  return report_of(now.context, now.trained, now.gradients, now.step);
}

const MemoryMeter& Engine::memory() const { return implementation_->persistent().meter; }
MemoryMeter& Engine::memory() { return implementation_->persistent().meter; }

MemoryBytes predicted_memory(const Engine& engine, int micro_steps) {
  const ShardedEngine& now = engine.implementation_->get();
  return memory_formula(now.parts().plan, setting_of(now, micro_steps));
}

MemoryBytes predicted_peak_memory(const Engine& engine, int micro_steps) {
  const ShardedEngine& now = engine.implementation_->get();
  return memory_peak_formula(now.parts().plan, setting_of(now, micro_steps));
}

const Trace* trace_of(const Engine& engine) {
  return engine.implementation_->get().context.persistent.trace.get();
}

}  // namespace tessera
