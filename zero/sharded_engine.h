#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/engine.h"
#include "tessera/core/errors.h"
#include "tessera/core/grad/backward_end.h"
#include "tessera/core/grad/gradient_hook.h"
#include "tessera/core/layout/flat_parameters.h"
#include "tessera/core/layout/parameter_table.h"
#include "tessera/core/layout/unit_plan.h"
#include "tessera/core/memory/memory_meter.h"
#include "tessera/core/options.h"
#include "tessera/core/step/rolling_hash.h"
#include "tessera/core/step/step_vote.h"
#include "tessera/ddp/gradient_handles.h"
#include "tessera/ddp/reducer.h"
#include "tessera/optim/flat_optimizer.h"
#include "tessera/optim/optimizer_plan.h"
#include "tessera/zero/parameter_access.h"

namespace tessera {

/// The engine behind every strategy: flat parameters, a reducer and an optimizer, put together by
/// their degrees. What a strategy is stands in placement.h; nothing here asks for it. Note [The
/// step is a fence] in sharded_engine.cc.
class ShardedEngine final : public Engine, private GradientSink, private BackwardListener {
 public:
  /// What parallelize() has checked and agreed on.
  struct Parts {
    std::shared_ptr<ProcessGroup> group;  ///< the engine's own
    ParameterTable table;
    UnitPlan plan;
    Options options;
    Degrees degrees;
    OptimizerPlan optimizer;
    std::vector<size_t> group_of;              ///< OptimizerPlan::assign's answer
    std::shared_ptr<torch::nn::Module> model;  ///< kept alive; null if the caller keeps it
  };

  ShardedEngine(Parts parts, std::vector<at::Tensor> buffers);
  ~ShardedEngine() override;

  StepResult step() override;
  torch::optim::Optimizer& optimizer() override { return *optimizer_; }
  void zero_grad() override;
  NoSync no_sync() override { return NoSync(no_sync_depth_); }
  void modify_parameters(int from_rank, const std::function<void()>& write) override;
  FullParameters full_parameters() override;
  uint64_t parameter_hash() override;
  Strategy strategy() const override { return parts_.options.strategy; }
  const ParameterTable& parameters() const override { return parts_.table; }
  ProcessGroup& group() override { return *parts_.group; }
  const MemoryMeter& memory() const override { return meter_; }
  MemoryBytes predicted_memory(int micro_steps) const override;

 private:
  void before_gradient(size_t index) override;
  void gradient(size_t index, at::Tensor gradient) override;
  void backward_ended() override;
  void backward_failed() noexcept override;

  void require_usable() const;
  void require_outside_backward(const char* call) const;
  void reduce_in_step();
  void begin_micro_step();
  void end_micro_step();
  void adopt_cleared_gradients();
  void show_gradients();
  void clear();
  std::string find_misuse() const;
  ExactSum squares() const;
  void apply(double scale);
  std::vector<at::Tensor> whole_gradients() const;
  void fail(const std::string& what) noexcept;
  void fail(const CommError& error) noexcept;
  template <typename Body>
  auto guard(Body&& body);

  Parts parts_;
  MemoryMeter meter_;
  RollingHash history_;          // since training began, without what zero_grad() dropped
  RollingHash history_at_step_;  // as of the last step
  FlatParameters flat_;
  Reducer reducer_;
  GradientHandles handles_;
  std::unique_ptr<FlatOptimizer> optimizer_;
  std::vector<int64_t> hyper_parameters_;
  std::vector<at::Tensor> gradients_;  // per unit, as the optimizer takes them
  StepVote vote_;
  ParameterAccess access_;
  BackwardWatch watch_;
  std::vector<std::unique_ptr<GradientHook>> hooks_;

  int64_t steps_ = 0;                // updates applied
  int64_t backwards_ = 0;            // of this model, since the last step
  bool saw_other_backward_ = false;  // a backward that gave this model nothing, since the last step
  bool in_micro_step_ = false;
  std::shared_ptr<int> no_sync_depth_ = std::make_shared<int>(0);
  std::string hook_error_;            // what a gradient hook of ours threw in this backward
  std::optional<CommError> failure_;  // why the engine can no longer be used
};

}  // namespace tessera
