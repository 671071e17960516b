#pragma once

#include <memory>

#include "tessera/comm_hook.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/trained_parameters.h"

namespace tessera::internal {

/// Does Engine::register_comm_hook() between steps: tries `hook` out and registers it, or throws
/// c10::Error on every rank. Collective, blocking.
void register_comm_hook(EngineContext& context, const TrainedParameters& trained,
                        std::shared_ptr<CommHook> hook);

}  // namespace tessera::internal
