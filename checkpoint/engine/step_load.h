#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tessera/checkpoint.h"

namespace tessera::internal {

/// What forbids to use a checkpoint whose extras are read and whose state is not; "" if nothing.
using FindProblem = std::function<std::string(const LoadedCheckpoint&)>;

/// load_checkpoint(), with a last word of the caller's: where `find_problem` objects on any rank,
/// every rank throws c10::Error with what it says, and nothing is changed. Collective, blocking.
std::optional<LoadedCheckpoint> load_step(Engine& engine, const std::string& directory,
                                          const LoadOptions& options,
                                          const FindProblem& find_problem);

}  // namespace tessera::internal
