#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/memory/freed_memory.h"
#include "tessera/core/step/step_vote.h"
#include "tessera/step_result.h"
#include "tessera/zero/buffers/synced_buffers.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/join_loop.h"
#include "tessera/zero/engine/misuse_check.h"
#include "tessera/zero/engine/step_gradients.h"
#include "tessera/zero/engine/trained_parameters.h"
#include "tessera/zero/parameters/model_change_check.h"
#include "tessera/zero/step/step_applier.h"

namespace tessera::internal {

/// Makes steps: reduces what no_sync() has left, reports this rank's errors, votes, commits, syncs
/// buffers and begins the next step. Note [The step is a fence] in engine_step.cc. Used by one
/// thread.
class EngineStep {
 public:
  /// References must outlive it. Collective.
  EngineStep(EngineContext& context, TrainedParameters& trained, StepGradients& gradients,
             JoinLoop& join);
  ~EngineStep();
  EngineStep(const EngineStep&) = delete;
  EngineStep& operator=(const EngineStep&) = delete;

  /// Does the work of Engine::step(). The caller has checked that step() may be called now.
  /// Collective, blocking.
  StepResult make();
  /// Under asynchronous steps: waits for the outcome of the last step and throws its error.
  /// Collective, blocking. Does nothing for synchronous steps.
  void learn_outcome();
  /// For engines that update in backward (Options::optimizer_in_backward): call it before the first
  /// update of a backward. Throws, on all ranks, the errors that make() would throw. Collective,
  /// blocking.
  void agree_to_update();

  const MisuseCheck& misuse() const { return misuse_; }
  const ModelChangeCheck& model_changes() const { return model_changes_; }
  /// Returns the number of updates applied so far, including those of a loaded state.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps);

  /// About the last step, for reports.
  struct Last {
    /// Reducer::used() of that step, by table index; empty before the first step. Under
    /// asynchronous steps it has only what this rank used.
    std::vector<uint8_t> used;
    int reductions = 1;  ///< number of backwards of the step that reduced gradients; at least 1
  };
  const Last& last() const { return last_; }

 private:
  void apply_schedule();
  void reduce_what_is_left();
  StepVote::RankReport rank_report(std::string misuse);
  std::string find_misuse() const;
  std::string find_untrained() const;
  StepResult begin_next(const std::optional<StepApplier::Outcome>& outcome);
  StepResult result_of(const StepApplier::Outcome& outcome);
  template <typename Body>
  auto guard_late(Body&& body);

  EngineContext& context_;
  TrainedParameters& trained_;
  StepGradients& gradients_;
  JoinLoop& join_;
  const MisuseCheck misuse_;
  const ModelChangeCheck model_changes_;
  const std::unique_ptr<SyncedBuffers> buffers_;  // null: steps do not sync buffers
  HugePagePace huge_page_pace_;
  Last last_;
  int64_t steps_ = 0;
  int64_t steps_here_ = 0;        // steps made by this engine object
  std::string schedule_problem_;  // why the schedule gives no learning rates; "" if it does
};

}  // namespace tessera::internal
