#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/options/resolved_options.h"
#include "tessera/core/reduce/gradient_observer.h"
#include "tessera/core/reduce/reducer.h"
#include "tessera/core/step/step_vote.h"
#include "tessera/optim/formulas/loss_scale_rule.h"
#include "tessera/optim/slices/flat_average.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/optimizer_plan.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/trace.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/parameters/parameter_store.h"
#include "tessera/zero/step/engine_failure.h"
#include "tessera/zero/step/update_in_backward.h"

namespace tessera::internal {

class WholeTensorExchange;

/// Agrees with all ranks on a step whose gradients are reduced, and applies it: on the host
/// (CpuStepApplier) or on the device that holds the gradients (GpuStepApplier). Owns the optimizer.
/// Used by the engine's thread; its observer by the thread that runs backward.
class StepApplier {
 public:
  /// The `when` of EngineFailure::abort_all_on_exception() for code that runs in a step after the
  /// vote.
  static constexpr const char* kAfterVote = " after all ranks had agreed to it";

  /// The outcome of a step. Equal on all ranks.
  struct Outcome {
    bool committed = false;
    double grad_norm = 0.0;   ///< of the mean gradient, without the loss scale
    double loss_scale = 1.0;  ///< in force in this step
    int64_t used_parameters = 0;
  };

  /// The objects that an applier works on; references, `trace` (may be null) and `average` must
  /// outlive the applier.
  struct Parts {
    ProcessGroup& group;
    const ParameterTable& table;
    const UnitPlan& plan;
    const SliceMap& slices;
    const ResolvedOptions& options;
    ParameterStore& store;
    EngineFailure& failure;
    MemoryMeter& meter;
    Trace* trace;
    FlatAverage* average = nullptr;  ///< of the weights; null: none is kept
  };

  virtual ~StepApplier() = default;
  StepApplier(const StepApplier&) = delete;
  StepApplier& operator=(const StepApplier&) = delete;

  virtual FlatOptimizer& optimizer() = 0;
  /// Returns the object that updates in backward; null where step() updates.
  virtual UpdateInBackward* update_in_backward() { return nullptr; }
  /// Returns the object that observes gradients before the step; null where none is needed.
  virtual GradientObserver* observer() { return nullptr; }

  /// Returns true if commit() returns before the outcome is known.
  virtual bool is_late() const { return false; }

  /// Applies or skips the step and makes its updates visible to all ranks. Collective.
  /// `rank_report` is complete except for what the gradients determine. Returns the outcome; if
  /// is_late(), the outcome of the previous step, unless there is none or wait() has returned it.
  /// Throws the c10::Error of the step whose outcome it would return, the same error on every rank.
  /// If is_late(), the current step has not been started when it throws.
  virtual std::optional<Outcome> commit(Reducer& reducer, StepVote::RankReport rank_report) = 0;

  /// If the outcome of the last step has not been returned yet, returns it or throws the step's
  /// error; otherwise returns nothing. Collective, blocking.
  virtual std::optional<Outcome> wait() { return std::nullopt; }

  /// Called before the first update of a backward that updates. Throws the errors that step() would
  /// throw, as far as they are known by then. Collective, blocking.
  virtual void agree_to_update(const StepVote::RankReport& rank_report);

  /// Drops what the applier has of this step's gradients (copies, counts). Local.
  virtual void drop() {}
  /// Drops the count of non-finite elements of parameter `parameter` of the table. Local.
  virtual void drop(size_t /*parameter*/) {}

  /// Returns the loss times the loss scale; the loss itself without one. Local; does not wait.
  virtual at::Tensor scale(const at::Tensor& loss) const = 0;
  virtual bool has_loss_scale() const = 0;
  /// Returns the loss scale after the last step whose outcome is known; {1, 0} without a scale.
  virtual LossScaleState loss_scale() const = 0;
  virtual void load_loss_scale(LossScaleState state) = 0;

  /// Returns the exchange for parameters that are transformed as a whole; null where there are
  /// none.
  virtual const WholeTensorExchange* exchange() const { return nullptr; }
  /// Returns how many bytes of this applier's memory on this rank count as MemoryClass::kControl.
  virtual int64_t bytes() const = 0;

 protected:
  StepApplier() = default;
  /// Returns the outcome of a step that all ranks agree to although its weights sum to zero, so
  /// that there is no mean.
  static Outcome without_weight(LossScaleState loss_scale) {
    return {.grad_norm = std::numeric_limits<double>::quiet_NaN(), .loss_scale = loss_scale.scale};
  }
};

/// Makes a CpuStepApplier if the masters lie on the host, else a GpuStepApplier. The optimizer of
/// `plan` works where the masters lie, and keeps its states there. `group_of` is the result of
/// OptimizerPlan::assign(). Local.
std::unique_ptr<StepApplier> make_step_applier(const StepApplier::Parts& parts,
                                               const OptimizerPlan& plan,
                                               const std::vector<size_t>& group_of);

}  // namespace tessera::internal
