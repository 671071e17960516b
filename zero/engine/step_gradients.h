#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/core/numbers/rolling_hash.h"
#include "tessera/core/reduce/reducer.h"
#include "tessera/zero/engine/dot_grad_views.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/micro_batches.h"
#include "tessera/zero/engine/trained_parameters.h"
#include "tessera/zero/step/step_weight.h"

namespace tessera::internal {

/// The gradients of the step that is being made, both those reduced already and those not reduced
/// yet; the `.grad` that users see; and the history by which ranks find out whether they differ.
/// Used by one thread.
class StepGradients {
 public:
  /// References must outlive it. Collective.
  StepGradients(EngineContext& context, TrainedParameters& trained);
  ~StepGradients();
  StepGradients(const StepGradients&) = delete;
  StepGradients& operator=(const StepGradients&) = delete;

  // A micro-step: a backward, or gradients that the user has computed.

  /// Begins a micro-step, whose gradients are multiplied by `factor`. Under kReduce all ranks must
  /// call it.
  void begin(Reducer::Mode mode, double factor);
  /// Takes one gradient of parameter `index`, whose view is hidden. Drops the gradient if the
  /// parameter was re-assigned and so has no place; the vote names the parameter.
  void receive(size_t index, const at::Tensor& gradient);
  /// Counts the backward that this rank has made. Called before end(), when autograd has no more
  /// gradients.
  void count_backward();
  /// Reduces the gradients received and shows them as `.grad`. `objects`: this rank has found an
  /// error in the backward. Returns true, on all ranks, if any rank objects or the weights are
  /// wrong; then call refuse(). Collective and blocking under kReduce. Throws ErrorOnAllRanks if
  /// ranks differ in what they have reduced or dropped.
  bool end(bool objects);
  /// Throws on every rank the errors that ranks have found in the backward. `problem` is this
  /// rank's error. A rank without one ("") reports what is wrong with the weights, if anything.
  /// Collective.
  void refuse(const std::string& problem);
  /// After a device has replayed a micro-step: called instead of begin(), receive(),
  /// count_backward() and end().
  void count_replayed();

  // Users' changes of `.grad`.

  /// Drops the gradients whose `.grad` users have cleared. Local.
  void adopt_cleared();
  void show();
  /// Drops all gradients, after a step or when a step is given up. Local.
  void clear();

  // The history.

  /// Called when all ranks have made a step or, under asynchronous steps, have queued it. `step`:
  /// the number of updates before it. `counts`: if false (the step was skipped), the history stays
  /// as it was before the step.
  void note_step(int64_t step, bool counts);
  /// Called when all ranks are known to agree on the last step. Its history is what
  /// take_back_step() restores from now on.
  void note_agreement() { history_agreed_ = history_at_step_; }
  /// Called when an asynchronous step was refused: restores the last agreed history and drops all
  /// gradients.
  void take_back_step();
  int64_t history() const { return history_.value(); }

  bool has_backward() const { return backwards_ > 0; }
  int64_t backwards() const { return backwards_; }
  /// Returns how many of this step's backwards reduced.
  int reductions() const { return reductions_; }
  /// Notes a backward that gave this model no gradients. See EngineStep::reduce_what_is_left().
  void note_other_backward() { saw_other_backward_ = true; }
  bool is_idle() const { return backwards_ == 0 && saw_other_backward_; }
  /// Notes that this rank's losses are scaled (Engine::scale()), or that it has no losses.
  void note_scaled() { was_scaled_ = true; }
  bool was_scaled() const { return was_scaled_; }

  Reducer& reducer() { return reducer_; }
  const Reducer& reducer() const { return reducer_; }
  DotGradViews& dot_grads() { return dot_grads_; }
  StepWeight& weight() { return weight_; }
  MicroBatches& micro_batches() { return micro_batches_; }
  const MicroBatches& micro_batches() const { return micro_batches_; }

 private:
  Reducer::Setting reducer_setting();

  EngineContext& context_;
  TrainedParameters& trained_;
  // Hash of all that was recorded since training began, without what zero_grad() dropped.
  RollingHash history_;
  RollingHash history_at_step_;  // history_ as of the last step
  RollingHash history_agreed_;  // history_ as of the last step that all ranks are known to agree on
  StepWeight weight_;
  Reducer reducer_;
  DotGradViews dot_grads_;
  MicroBatches micro_batches_;
  int64_t backwards_ = 0;            // backwards of this model since the last step
  int reductions_ = 0;               // backwards that reduced, since the last step
  bool saw_other_backward_ = false;  // a backward since the last step gave this model no gradients
  bool was_scaled_ = false;          // note_scaled() was called since the last step
};

}  // namespace tessera::internal
