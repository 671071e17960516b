#pragma once

#include <cstdint>
#include <string>

#include "tessera/engine.h"
#include "tessera/process_group.h"

namespace gpt {

/// Returns a table of the engine's memory by class in MiB: for each rank what the formula predicts,
/// what is held now, the peak, and the rank's PSS. Collective over `world`; every rank receives the
/// text. `reductions` is how often a step reduces gradients: its backward passes outside no_sync().
std::string memory_table(const tessera::Engine& engine, int reductions,
                         tessera::ProcessGroup& world);

}  // namespace gpt
