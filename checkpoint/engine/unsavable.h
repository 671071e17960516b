#pragma once

#include <map>
#include <string>

#include "tessera/engine.h"

namespace tessera::internal {

/// What of the engine's state and of `notes` no checkpoint can have, by its name or its dtype, a
/// line each; "" if nothing. Collective; throws as Engine::write_state().
std::string unsavable(Engine& engine, const std::map<std::string, std::string>& notes);

}  // namespace tessera::internal
