#pragma once

#include <functional>

#include "tessera/mean.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/trained_parameters.h"

namespace tessera::internal {

/// Does Engine::evaluate(). The caller has checked that it may be called now. Collective, blocking.
Mean evaluate(EngineContext& context, TrainedParameters& trained,
              const std::function<bool()>& has_batch, const std::function<void(Mean&)>& run_batch);

}  // namespace tessera::internal
