#pragma once

#include <cstdint>
#include <memory>

#include "tessera/memory_meter.h"
#include "tessera/optim/slices/flat_average.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/parameters/master_values.h"
#include "tessera/zero/parameters/parameter_access.h"
#include "tessera/zero/parameters/parameter_store.h"
#include "tessera/zero/step/step_applier.h"
#include "tessera/zero/step/update_in_backward.h"

namespace tessera::internal {

/// What an engine trains: the parameters with their masters, the average of the weights, and the
/// optimizer, which the applier owns. Rebuilt when the trained parameters change.
struct TrainedParameters {
  /// `context` must outlive it. Parameters are equal on all ranks already. Collective.
  TrainedParameters(EngineContext& context, Values brought);
  ~TrainedParameters();
  TrainedParameters(const TrainedParameters&) = delete;
  TrainedParameters& operator=(const TrainedParameters&) = delete;

  /// Waits for all work that steps and operators have left under way. Afterwards no rank reads or
  /// writes parameters in the background. Blocking.
  void settle();
  /// Returns true if backward has updated parameters that no step() has committed yet.
  bool is_updated() const { return early_update != nullptr && early_update->has_begun(); }
  FlatOptimizer& optimizer() const { return applier->optimizer(); }

  ParameterStore store;
  const std::unique_ptr<FlatAverage> average;  ///< null without Options::average
  const std::unique_ptr<StepApplier> applier;
  UpdateInBackward* const early_update;  ///< owned by applier; null unless backward updates
  ParameterAccess access;

 private:
  MemoryClass optimizer_class() const;
  int64_t optimizer_bytes() const;

  EngineContext& context_;
};

}  // namespace tessera::internal
