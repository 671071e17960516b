#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/engine.h"
#include "tessera/memory_formula.h"
#include "tessera/zero/engine/average_in_use.h"
#include "tessera/zero/engine/backward.h"
#include "tessera/zero/engine/call_rules.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/engine_state.h"
#include "tessera/zero/engine/engine_step.h"
#include "tessera/zero/engine/join_loop.h"
#include "tessera/zero/engine/step_gradients.h"
#include "tessera/zero/engine/trained_parameters.h"

namespace tessera::internal {

/// The engine of every strategy: its parts, and for each call of Engine who may make it, what is
/// announced to ranks that follow, and which part does it. Its calls have the contracts of Engine's
/// of the same names. placement() maps a strategy to degrees; nothing here depends on the strategy.
class ShardedEngine final {
 public:
  /// Parameters and buffers are equal on all ranks already. `lasting` outlives it. Collective.
  ShardedEngine(EngineParts parts, Lasting& lasting, Values brought = Values::kOfParameters);
  ShardedEngine(const ShardedEngine&) = delete;
  ShardedEngine& operator=(const ShardedEngine&) = delete;

  const EngineParts& parts() const { return context_.parts; }

  // Training.

  StepResult step();
  torch::optim::Optimizer& optimizer() { return *context_.lasting.optimizer; }
  void backward(const at::Tensor& loss, const BackwardOptions& options);
  at::Tensor scale(const at::Tensor& loss) { return backward_.scale(loss); }
  double loss_scale() const { return trained_.commit->loss_scale().scale; }
  void accumulate(const std::vector<NamedTensor>& gradients, std::optional<double> weight);
  void zero_grad();
  bool has_gradients() const { return gradients_.has_backward(); }
  Engine::NoSync no_sync();
  void micro_step(const std::function<void()>& body);
  JoinScope begin_join(JoinOptions options);
  void begin_call(const char* call);
  Mean evaluate(const std::function<bool()>& has_batch,
                const std::function<void(Mean&)>& run_batch);
  void set_schedule(Engine::Schedule rate);
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  void wait();
  int64_t steps() const { return step_.steps(); }
  int64_t micro_batch() const { return gradients_.micro_batches().next(); }
  const StepResult& last_result() const { return context_.lasting.last_result; }

  // Parameters and state.

  void modify_parameters(int from_rank, const std::function<void()>& write);
  Engine::Scope full_parameters();
  Engine::Scope gather(const torch::nn::Module& module);
  Engine::AverageScope begin_average();
  uint64_t parameter_hash();
  StateDict state_dict(StateScope scope, int rank);
  void load_state_dict(const StateDict& state, const PartialState& partial);
  void write_state(StateSink& sink);
  std::vector<StateOutline> state_entries();
  void read_state(StateSource& source, const PartialState& partial);

  // Where another is built in its place: see CurrentEngine. `call` is what that is called.

  /// Collective. Throws where `call` may not be made; then nothing is under way.
  void begin_change(const char* call);
  /// What else forbids it on this rank; "" for nothing. Local.
  std::string problem_of_change(const char* call);
  /// EngineState's.
  void take_out(const char* call, const ParameterTable& next, StateDict& stays, StateDict* left) {
    state_.take_out(call, next, stays, left);
  }
  void put_back(const char* call, StateDict stays) { state_.put_back(call, std::move(stays)); }

  // What it is made of, and what it has done.

  Strategy strategy() const { return parts().options.strategy; }
  const ParameterTable& parameters() const { return parts().table; }
  ProcessGroup& group() { return context_.group; }
  const Degrees& degrees() const { return parts().options.degrees; }
  const UnitPlan& units() const { return parts().plan; }
  GatherCounts gather_counts() const;
  const Trace* trace() const { return context_.lasting.trace.get(); }
  Report report() const;
  MemorySetting memory_setting(int micro_steps) const;

 private:
  using Inside = AverageInUse::Inside;

  void follow();
  void make_followed(Announcements::Call call);
  void enter(const char* call, Inside inside);
  void begin(const char* call, Inside inside);

  // Each uses those above it.
  EngineContext context_;
  TrainedParameters trained_;
  StepGradients gradients_;
  JoinLoop join_;
  AverageInUse average_;
  EngineStep step_;
  Backward backward_;
  CallRules rules_;
  EngineState state_;
};

}  // namespace tessera::internal
