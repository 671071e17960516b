#pragma once

#include "tessera/memory_formula.h"
#include "tessera/report.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/engine_step.h"
#include "tessera/zero/engine/step_gradients.h"
#include "tessera/zero/engine/trained_parameters.h"

namespace tessera::internal {

/// Returns the input of the memory formulas for this engine if each step has `micro_steps`
/// backwards. Local.
MemorySetting memory_setting(const EngineContext& context, const TrainedParameters& trained,
                             const StepGradients& gradients, int micro_steps);

/// Engine::report(). Local.
Report report_of(const EngineContext& context, const TrainedParameters& trained,
                 const StepGradients& gradients, const EngineStep& step);

/// Engine::gather_counts(). Local.
GatherCounts gather_counts(const TrainedParameters& trained);

}  // namespace tessera::internal
