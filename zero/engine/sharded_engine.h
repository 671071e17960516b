#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/comm_hook.h"
#include "tessera/core/grad/backward_end.h"
#include "tessera/core/grad/gradient_hook.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/core/memory/freed_memory.h"
#include "tessera/core/numbers/rolling_hash.h"
#include "tessera/core/options/resolved_options.h"
#include "tessera/core/reduce/reducer.h"
#include "tessera/core/sched/step_times.h"
#include "tessera/core/sched/stream_join.h"
#include "tessera/core/sched/trace_span.h"
#include "tessera/core/step/step_vote.h"
#include "tessera/ddp/gradient_handles.h"
#include "tessera/ddp/synced_buffers.h"
#include "tessera/engine.h"
#include "tessera/memory_formula.h"
#include "tessera/optim/flat_average.h"
#include "tessera/optimizer_plan.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/report.h"
#include "tessera/trace.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/engine/announcements.h"
#include "tessera/zero/engine/captured_micro_steps.h"
#include "tessera/zero/engine/lasting.h"
#include "tessera/zero/engine/micro_batches.h"
#include "tessera/zero/engine/misuse_check.h"
#include "tessera/zero/engine/open_average.h"
#include "tessera/zero/engine/open_join.h"
#include "tessera/zero/parameters/parameter_access.h"
#include "tessera/zero/parameters/parameter_store.h"
#include "tessera/zero/parameters/registration.h"
#include "tessera/zero/state/state_slices.h"
#include "tessera/zero/state/state_transfer.h"
#include "tessera/zero/state/streamed_state.h"
#include "tessera/zero/step/engine_failure.h"
#include "tessera/zero/step/step_commit.h"
#include "tessera/zero/step/step_weight.h"
#include "tessera/zero/step/update_in_backward.h"

namespace tessera::internal {

/// The engine of every strategy: a parameter store, a reducer and an optimizer, configured by the
/// degrees. placement() maps a strategy to degrees; nothing here depends on the strategy. Its calls
/// have the contracts of Engine's of the same names. Note [The step is a fence] in
/// sharded_engine.cc.
class ShardedEngine final : private GradientSink, private BackwardListener {
 public:
  /// What parallelize() has checked and agreed on.
  struct Parts {
    std::shared_ptr<ProcessGroup> group;  ///< this object's own, or Lasting's
    ParameterTable table;
    UnitPlan plan;
    ResolvedOptions options;
    OptimizerPlan optimizer;
    std::vector<size_t> group_of;  ///< OptimizerPlan::assign's answer
  };

  /// Parameters and buffers are equal on all ranks already. `lasting` outlives it. Collective.
  ShardedEngine(Parts parts, Lasting& lasting, Values brought = Values::kOfParameters);
  ShardedEngine(const ShardedEngine&) = delete;
  ShardedEngine& operator=(const ShardedEngine&) = delete;
  ~ShardedEngine();

  const Parts& parts() const { return parts_; }

  StepResult step();
  torch::optim::Optimizer& optimizer() { return *lasting_.optimizer; }
  void backward(const at::Tensor& loss, const BackwardOptions& options);
  at::Tensor scale(const at::Tensor& loss);
  double loss_scale() const { return commit_->loss_scale().scale; }
  void accumulate(const std::vector<NamedTensor>& gradients, std::optional<double> weight);
  void zero_grad();
  bool has_gradients() const { return backwards_ > 0; }
  JoinScope begin_join(JoinOptions options);
  void follow();  // JoinScope's
  void begin_outside_call(const char* call) { announce(Announcements::Call::kOther, call); }
  Mean evaluate(const std::function<bool()>& has_batch,
                const std::function<void(Mean&)>& run_batch);
  Engine::NoSync no_sync();
  void micro_step(const std::function<void()>& body);
  void set_schedule(Engine::Schedule rate);
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  void wait();
  int64_t steps() const { return steps_; }
  int64_t micro_batch() const { return micro_batches_.next(); }
  const StepResult& last_result() const { return lasting_.last_result; }

  void modify_parameters(int from_rank, const std::function<void()>& write);
  Engine::Scope full_parameters();
  Engine::Scope gather(const torch::nn::Module& module);
  Engine::AverageScope begin_average();
  void end_average();  // AverageScope::end()
  StateDict state_dict(StateScope scope, int rank);
  void load_state_dict(const StateDict& state, const PartialState& partial);
  void write_state(StateSink& sink);
  /// What write_state() would give to StateSink::begin(), without ranges. Collective.
  std::vector<StateOutline> state_entries();
  void read_state(StateSource& source, const PartialState& partial);
  uint64_t parameter_hash();

  // Where another is built in its place: see CurrentEngine. `call` is what that is called.

  /// Collective. Throws where `call` may not be made; then nothing is under way.
  void begin_change(const char* call);
  /// What else forbids it on this rank; "" for nothing. Local.
  std::string problem_of_change(const char* call);
  /// What this rank has of its state: in `stays` what an engine that trains `next` goes on with,
  /// and in `left`, unless that is null, the state of parameters that are frozen there. Local: what
  /// it throws ends the engine.
  void take_out(const char* call, const ParameterTable& next, StateDict& stays, StateDict* left);
  /// Collective; in the new one. `stays` of all ranks.
  void put_back(const char* call, StateDict stays);

  Strategy strategy() const { return parts_.options.strategy; }
  const ParameterTable& parameters() const { return parts_.table; }
  ProcessGroup& group() { return *parts_.group; }
  const Degrees& degrees() const { return parts_.options.degrees; }
  const UnitPlan& units() const { return parts_.plan; }
  GatherCounts gather_counts() const {
    return store_.gathered() == nullptr ? GatherCounts{} : store_.gathered()->counts();
  }
  const Trace* trace() const { return lasting_.trace.get(); }
  Report report() const;
  MemoryMeter& memory() { return lasting_.meter; }
  /// What the memory formulas ask of it.
  MemorySetting memory_setting(int micro_steps) const;

 private:
  void before_gradient(size_t index) override;
  void gradient(size_t index, at::Tensor gradient) override;
  void backward_ended() override;
  void backward_failed() noexcept override;

  Reducer::Setting reducer_setting();
  StreamedState::Saving agree_to_save();
  std::string problem_of_hook(CommHook* hook) const;
  std::string misplaced() const;
  void take_failed_gather();
  void require_usable();
  void require_outside_backward(const char* call) const;
  void require_no_update(const char* call);
  void require_between_steps(const char* call);
  /// What a collective call does inside the scope of begin_average(). See Note [Inside an average].
  enum class InAverage : uint8_t { kRefused, kAllowed, kEnds };
  void leave_average(const char* call, InAverage in_average);
  std::string find_write_inside() const;
  /// Begins a collective call that a rank in a join() without batches cannot follow.
  void enter(const char* call, InAverage in_average);
  Announcements::Call announce(Announcements::Call mine, const char* name,
                               bool is_weighted = false);
  void take_hyper_parameters();
  SyncedBuffers::Ranks ranks_with_batches() const;
  void follow_micro_step();
  double early_factor() const;
  void end_join();
  void agree_to_update();
  void reduce_in_step();
  void require_weights() const;
  void differentiate(const at::Tensor& loss, bool retain_graph);
  bool finish_reductions(bool objects);
  void refuse_backward(const std::string& problem);
  void look_for_writes();
  void apply_schedule();
  void begin_micro_step();
  void end_micro_step();
  void adopt_cleared_gradients();
  void show_gradients();
  void clear();
  void settle();
  StepVote::RankReport rank_report(std::string misuse);
  std::string find_misuse() const;
  std::string find_untrained() const;
  StepResult begin_next_step(const std::optional<StepCommit::Outcome>& outcome);
  template <typename Body>
  auto guard_late(Body&& body);
  void learn_outcome();
  StepResult result_of(const StepCommit::Outcome& outcome);
  void take_counters(const EngineCounters& loaded);
  int64_t optimizer_bytes() const;
  int64_t control_bytes() const;
  MemoryClass optimizer_class() const;
  void load_state(const char* call, const std::function<void(EngineCounters&)>& load);
  EngineCounters counters() const {
    return {.steps = steps_,
            .loss_scale = loss_scale(),
            .good_steps = commit_->loss_scale().good_steps,
            .has_scaler = commit_->has_loss_scale(),
            .averaged = average_ != nullptr ? average_->updates() : 0,
            .has_average = average_ != nullptr,
            .micro_batches = micro_batches_.count(),
            .counts_micro_batches = is_any_world_size()};
  }
  bool is_any_world_size() const {
    return parts_.options.reproducible == Reproducible::kAnyWorldSize;
  }
  /// Backward has updated what no step() has committed yet.
  bool is_updated() const { return early_update_ != nullptr && early_update_->has_begun(); }

  Parts parts_;
  Lasting& lasting_;
  EngineFailure failure_;
  StreamJoin streams_;  // that use the engine's memory
  SliceMap slices_;
  ComputeSpans compute_;
  StepTimes times_;
  BackwardWatch watch_;
  RollingHash history_;          // since training began, without what zero_grad() dropped
  RollingHash history_at_step_;  // as of the last step
  RollingHash history_agreed_;   // as of the last step that all ranks are known to agree on
  ParameterStore store_;
  const std::unique_ptr<FlatAverage> average_;  // null without Options::average
  std::unique_ptr<StepCommit> commit_;
  UpdateInBackward* const early_update_;  // null: step() updates
  StepWeight weight_;
  Reducer reducer_;
  GradientHandles handles_;
  ParameterAccess access_;
  MisuseCheck misuse_;
  const Registration registration_;
  const std::unique_ptr<SyncedBuffers> buffers_;  // null: steps leave them
  StateSlices state_;
  StateTransfer state_transfer_;
  StreamedState streamed_state_;
  std::unique_ptr<CapturedMicroSteps> captured_;  // null without Options::cuda_graphs
  std::vector<std::unique_ptr<GradientHook>> hooks_;
  std::shared_ptr<OpenAverage> open_average_;  // null outside begin_average()
  std::shared_ptr<OpenJoin> open_join_;        // null outside join(), as the next two
  std::optional<Announcements> announcements_;
  std::optional<HostAllGather> hyper_parameters_;

  /// Of the step made last, for report().
  struct LastStep {
    std::vector<uint8_t> used;  // per table entry; empty before the first
    int reductions = 1;         // backwards that reduced
  } last_step_;

  MicroBatches micro_batches_;
  HugePagePace huge_page_pace_;
  int64_t steps_ = 0;                // updates applied
  int64_t steps_here_ = 0;           // those of this engine, without loaded ones
  int64_t backwards_ = 0;            // of this model, since the last step
  int reductions_ = 0;               // those of them that reduced
  bool saw_other_backward_ = false;  // a backward that gave this model nothing, since the last step
  bool in_micro_step_ = false;
  bool is_announced_ = false;               // what begins next in a join()
  bool is_following_ = false;               // other ranks, in a join()
  std::optional<double> next_weight_ = {};  // of the micro-step that begins next
  bool was_scaled_ = false;                 // scale() was called since the last step
  std::string written_;  // what was found in the last backward since step(), see look_for_writes()
  std::string schedule_problem_;  // why the next update has no rates
  std::string hook_error_;        // what a gradient hook of ours threw in this backward
};

}  // namespace tessera::internal
