#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/backward_options.h"
#include "tessera/core/grad/backward_end.h"
#include "tessera/core/grad/gradient_hook.h"
#include "tessera/zero/engine/average_in_use.h"
#include "tessera/zero/engine/captured_micro_steps.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/engine_step.h"
#include "tessera/zero/engine/given_gradients.h"
#include "tessera/zero/engine/join_loop.h"
#include "tessera/zero/engine/step_gradients.h"
#include "tessera/zero/engine/trained_parameters.h"

namespace tessera::internal {

/// Micro-steps: takes gradients from autograd or from the user, and detects when a backward begins,
/// ends and fails. Note [Writes behind the engine's back] and Note [Failed gathers] in backward.cc.
/// Used by the thread that makes it and runs backward; on a GPU hooks run on the device's thread.
class Backward final : private GradientSink, private BackwardListener {
 public:
  /// The parts of the engine that Backward uses; they must outlive it.
  struct Uses {
    EngineContext& context;
    TrainedParameters& trained;
    StepGradients& gradients;
    JoinLoop& join;
    EngineStep& step;
    const AverageInUse& average;
  };
  explicit Backward(const Uses& parts);
  ~Backward();
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

  // The Engine calls of the same names. The caller has checked that they may be made.

  void backward(const at::Tensor& loss, const BackwardOptions& options);
  at::Tensor scale(const at::Tensor& loss);
  void micro_step(const std::function<void()>& body);
  /// Returns true if accumulate() would now only add to this rank's gradients, without
  /// communication.
  bool accumulates_alone() const;
  /// `is_announced`: the call has already been announced to all ranks in the loop over join().
  void accumulate(const GivenGradients& given, std::optional<double> weight, bool is_announced);

  /// Takes part, without gradients, in a micro-step of the ranks with batches. `is_local`: the
  /// micro-step is inside no_sync().
  void follow(bool is_local);

  /// Returns why losses may not have weights in this engine, or "" if they may. Ranks may differ in
  /// that if their modules differ in training mode. `is_known_in_backward`: the weight was known
  /// when the gradients were computed.
  std::string refusal_of_weights(bool is_known_in_backward) const;
  /// Forgets the write to a parameter that the last backward found. Called by step(), which looks
  /// for writes itself.
  void forget_writes() { written_.clear(); }

  /// Returns true if a backward of this engine is under way; any thread may ask.
  bool is_running() const {
    return context_.backward_watch.is_backward_running() || in_micro_step_;
  }
  /// Returns true if the caller is the thread that runs backward.
  bool is_own_thread() const { return context_.backward_watch.is_own_thread(); }

 private:
  void before_gradient(size_t index) override;
  void gradient(size_t index, at::Tensor gradient) override;
  void backward_ended() override;
  void backward_failed() noexcept override;

  void differentiate(const at::Tensor& loss, bool retain_graph);
  void begin_micro_step(bool is_announced = false);
  void end_micro_step();
  void look_for_writes();

  EngineContext& context_;
  TrainedParameters& trained_;
  StepGradients& gradients_;
  JoinLoop& join_;
  EngineStep& step_;
  const AverageInUse& average_;
  std::unique_ptr<CapturedMicroSteps> captured_;  // null without Options::cuda_graphs
  std::vector<std::unique_ptr<GradientHook>> hooks_;
  bool in_micro_step_ = false;
  // weight of the next micro-step's loss; unset if it has none
  std::optional<double> next_weight_ = {};
  std::string written_;     // the write that the last backward since step() found; "" if none
  std::string hook_error_;  // what a gradient hook of the engine has thrown in this backward
};

}  // namespace tessera::internal
