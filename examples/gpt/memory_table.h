#pragma once

#include <cstdint>
#include <string>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/engine.h"

namespace gpt {

/// A table of the engine's memory by class in MiB: for each rank what the formula predicts, what is
/// held now and the most that was held, and beside them the rank's PSS. Collective over `world`;
/// every rank receives the text. `micro_steps` is the number of backward passes per step.
std::string memory_table(const tessera::Engine& engine, int micro_steps,
                         tessera::ProcessGroup& world);

}  // namespace gpt
