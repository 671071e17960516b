#include "tessera/engine.h"

#include <c10/util/Exception.h>

#include "tessera/zero/engine/open_average.h"
#include "tessera/zero/engine/sharded_engine.h"

namespace tessera {
using namespace internal;

Engine::Engine(std::unique_ptr<ShardedEngine> implementation)
    : implementation_(std::move(implementation)) {}

Engine::~Engine() = default;

// --- Training ---

StepResult Engine::step() { return implementation_->step(); }

torch::optim::Optimizer& Engine::optimizer() { return implementation_->optimizer(); }

at::Tensor Engine::scale(const at::Tensor& loss) { return implementation_->scale(loss); }

double Engine::loss_scale() const { return implementation_->loss_scale(); }

void Engine::accumulate(const std::vector<NamedTensor>& gradients) {
  implementation_->accumulate(gradients);
}

void Engine::zero_grad() { implementation_->zero_grad(); }

Engine::NoSync Engine::no_sync() { return implementation_->no_sync(); }

void Engine::micro_step(const std::function<void()>& body) { implementation_->micro_step(body); }

void Engine::set_schedule(Schedule rate) { implementation_->set_schedule(std::move(rate)); }

void Engine::wait() { implementation_->wait(); }

const StepResult& Engine::last_result() const { return implementation_->last_result(); }

int64_t Engine::steps() const { return implementation_->steps(); }

// --- Parameters and state ---

void Engine::modify_parameters(int from_rank, const std::function<void()>& write) {
  implementation_->modify_parameters(from_rank, write);
}

Engine::Scope Engine::full_parameters() { return implementation_->full_parameters(); }

Engine::Scope Engine::gather(const torch::nn::Module& module) {
  return implementation_->gather(module);
}

Engine::AverageScope Engine::begin_average() { return implementation_->begin_average(); }

Engine::AverageScope::~AverageScope() {
  if (open_ != nullptr) open_->is_dropped = true;
}

void Engine::AverageScope::end() {
  TORCH_CHECK(
      open_ != nullptr,
      "[engine] end: got a scope of begin_average() that has ended or was moved from, expected "
      "an open one; call end() once");
  TORCH_CHECK(open_->engine != nullptr,
              "[engine] end: the engine is gone; end the scope before it is destroyed");
  open_->engine->end_average();
  open_.reset();
}

StateDict Engine::state_dict(StateScope scope, int rank) {
  return implementation_->state_dict(scope, rank);
}

void Engine::load_state_dict(const StateDict& state) { implementation_->load_state_dict(state); }

void Engine::write_state(StateSink& sink) { implementation_->write_state(sink); }

void Engine::read_state(StateSource& source) { implementation_->read_state(source); }

uint64_t parameter_hash(Engine& engine) { return engine.implementation_->parameter_hash(); }

// --- What it is made of ---

Strategy Engine::strategy() const { return implementation_->strategy(); }

const ParameterTable& Engine::parameters() const { return implementation_->parameters(); }

ProcessGroup& Engine::group() { return implementation_->group(); }

const Degrees& Engine::degrees() const { return implementation_->degrees(); }

const UnitPlan& Engine::units() const { return implementation_->units(); }

// --- What it holds and has done ---

GatherCounts Engine::gather_counts() const { return implementation_->gather_counts(); }

const MemoryMeter& Engine::memory() const { return implementation_->memory(); }
MemoryMeter& Engine::meter() { return implementation_->memory(); }

MemoryBytes predicted_memory(const Engine& engine, int micro_steps) {
  const ShardedEngine& sharded = *engine.implementation_;
  return memory_formula(sharded.units(), sharded.memory_setting(micro_steps));
}

MemoryBytes predicted_peak_memory(const Engine& engine, int micro_steps) {
  const ShardedEngine& sharded = *engine.implementation_;
  return memory_peak_formula(sharded.units(), sharded.memory_setting(micro_steps));
}

const Trace* trace_of(const Engine& engine) { return engine.implementation_->trace(); }

}  // namespace tessera
