#include "tessera/engine.h"

#include <utility>

#include <c10/util/Exception.h>

#include "tessera/zero/engine/current_engine.h"
#include "tessera/zero/engine/open_average.h"
#include "tessera/zero/engine/open_join.h"

namespace tessera {
using namespace internal;

Engine::Engine(std::unique_ptr<CurrentEngine> implementation)
    : implementation_(std::move(implementation)) {}

Engine::~Engine() {
  if (!implementation_->origin().is_here()) never_destroy(std::move(implementation_));
}

// --- Training ---

StepResult Engine::step() { return implementation_->get().step(); }

torch::optim::Optimizer& Engine::optimizer() { return implementation_->get().optimizer(); }

void Engine::backward(const at::Tensor& loss, const BackwardOptions& options) {
  implementation_->get().backward(loss, options);
}

at::Tensor Engine::scale(const at::Tensor& loss) { return implementation_->get().scale(loss); }

double Engine::loss_scale() const { return implementation_->get().loss_scale(); }

void Engine::accumulate(const std::vector<NamedTensor>& gradients, std::optional<double> weight) {
  implementation_->get().accumulate(gradients, weight);
}

void Engine::zero_grad() { implementation_->get().zero_grad(); }

bool Engine::has_gradients() const { return implementation_->get().has_gradients(); }

Engine::NoSync Engine::no_sync() { return implementation_->get().no_sync(); }

void Engine::micro_step(const std::function<void()>& body) {
  implementation_->get().micro_step(body);
}

void Engine::register_comm_hook(std::shared_ptr<CommHook> hook) {
  implementation_->get().register_comm_hook(std::move(hook));
}

JoinScope Engine::begin_join(JoinOptions options) {
  return implementation_->get().begin_join(std::move(options));
}

JoinScope::~JoinScope() {
  if (open_ != nullptr && open_->follow) open_->is_left = true;
}

void JoinScope::follow() {
  TORCH_CHECK(!open_->is_followed,
              "[join] loop: ran a second time, expected once; call engine->join() for each loop");
  open_->is_followed = true;
  const std::function<void()> follow = open_->follow;  // at the end of the loop it is cleared
  if (follow) follow();
}

void Engine::begin_call(const char* call) { implementation_->get().begin_call(call); }

Mean Engine::evaluate_batches(const std::function<bool()>& has_batch,
                              const std::function<void(Mean&)>& run_batch) {
  return implementation_->get().evaluate(has_batch, run_batch);
}

void Engine::set_schedule(Schedule rate) { implementation_->get().set_schedule(std::move(rate)); }

void Engine::wait() { implementation_->get().wait(); }

const StepResult& Engine::last_result() const { return implementation_->get().last_result(); }

int64_t Engine::steps() const { return implementation_->get().steps(); }

int64_t Engine::micro_batch() const { return implementation_->get().micro_batch(); }

// --- Parameters and state ---

void Engine::modify_parameters(int from_rank, const std::function<void()>& write) {
  implementation_->get().modify_parameters(from_rank, write);
}

Engine::Scope Engine::full_parameters() { return implementation_->get().full_parameters(); }

Engine::Scope Engine::gather(const torch::nn::Module& module) {
  return implementation_->get().gather(module);
}

Engine::AverageScope Engine::begin_average() { return implementation_->get().begin_average(); }

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

StateDict Engine::set_trainable(const ParameterPredicate& trains, FrozenState frozen) {
  return implementation_->set_trainable(trains, frozen);
}

void Engine::add_group(OptimizerGroup group) { implementation_->add_group(std::move(group)); }

StateDict Engine::state_dict(StateScope scope, int rank) {
  return implementation_->get().state_dict(scope, rank);
}

void Engine::load_state_dict(const StateDict& state, const PartialState& partial) {
  implementation_->get().load_state_dict(state, partial);
}

void Engine::write_state(StateSink& sink) { implementation_->get().write_state(sink); }

std::vector<StateOutline> Engine::state_entries() { return implementation_->get().state_entries(); }

void Engine::read_state(StateSource& source, const PartialState& partial) {
  implementation_->get().read_state(source, partial);
}

uint64_t parameter_hash(Engine& engine) { return engine.implementation_->get().parameter_hash(); }

// --- What it is made of ---

Strategy Engine::strategy() const { return implementation_->get().strategy(); }

const ParameterTable& Engine::parameters() const { return implementation_->get().parameters(); }

ProcessGroup& Engine::group() { return *implementation_->lasting().group; }

const Degrees& Engine::degrees() const { return implementation_->get().degrees(); }

const UnitPlan& Engine::units() const { return implementation_->get().units(); }

// --- What it holds and has done ---

GatherCounts Engine::gather_counts() const { return implementation_->get().gather_counts(); }

Report Engine::report() const { return implementation_->get().report(); }

const MemoryMeter& Engine::memory() const { return implementation_->lasting().meter; }
MemoryMeter& Engine::memory() { return implementation_->lasting().meter; }

MemoryBytes predicted_memory(const Engine& engine, int micro_steps) {
  const ShardedEngine& sharded = engine.implementation_->get();
  return memory_formula(sharded.units(), sharded.memory_setting(micro_steps));
}

MemoryBytes predicted_peak_memory(const Engine& engine, int micro_steps) {
  const ShardedEngine& sharded = engine.implementation_->get();
  return memory_peak_formula(sharded.units(), sharded.memory_setting(micro_steps));
}

const Trace* trace_of(const Engine& engine) { return engine.implementation_->get().trace(); }

}  // namespace tessera
