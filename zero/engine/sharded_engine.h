#pragma once

#include <string>
#include <utility>

#include "tessera/zero/engine/average_in_use.h"
#include "tessera/zero/engine/backward.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/engine_state.h"
#include "tessera/zero/engine/engine_step.h"
#include "tessera/zero/engine/join_loop.h"
#include "tessera/zero/engine/step_gradients.h"
#include "tessera/zero/engine/trained_parameters.h"

namespace tessera::internal {

/// The engine of every strategy: its parts, and which calls may be made now. placement() maps a
/// strategy to degrees; nothing here depends on the strategy.
struct ShardedEngine final {
  /// Parameters and buffers are equal on all ranks already. `outlives` must outlive this object.
  /// Collective.
  ShardedEngine(EngineParts agreed, PersistentState& outlives,
                Values brought = Values::kOfParameters)
      : context(std::move(agreed), outlives), trained(context, brought) {
    context.compute.begin();
    context.times.begin_step();
  }
  ShardedEngine(const ShardedEngine&) = delete;
  ShardedEngine& operator=(const ShardedEngine&) = delete;

  const EngineParts& parts() const { return context.parts; }

  // Preconditions of calls. Local; each throws c10::Error that names the call, or the failure.

  /// Returns why most calls may not be made here (inside backward, a hook, modify_parameters() or a
  /// function that the engine runs); "" if they may.
  std::string misplaced() const;
  void require_outside_backward(const char* call) const;
  /// Throws if the engine has failed.
  void require_usable();
  /// Throws if the engine has failed in a way that loading a state does not mend. First makes the
  /// caller's stream wait for earlier work, as require_between_steps() does.
  void require_loadable();
  /// Like require_usable(), but also throws if backward has updated parameters that no step() has
  /// committed. For calls that read or write parameters, or drop gradients.
  void require_no_update(const char* call);
  /// Like require_no_update(), but also throws inside backward.
  void require_between_steps(const char* call);

  // Each member uses only the members above it.
  EngineContext context;
  TrainedParameters trained;
  StepGradients gradients{context, trained};
  JoinLoop join{context, trained, gradients.weight()};
  AverageInUse average{context, trained};
  EngineStep step{context, trained, gradients, join};
  Backward backward{{context, trained, gradients, join, step, average}};
  EngineState state{context, trained, gradients, step};

 private:
  void take_failed_gather();
};

}  // namespace tessera::internal
