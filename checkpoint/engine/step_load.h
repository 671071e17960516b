#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tessera/checkpoint.h"
#include "tessera/file_system.h"

namespace tessera::internal {

/// What forbids to use a checkpoint whose extras are read and whose state is not; "" if nothing.
using FindProblem = std::function<std::string(const LoadedCheckpoint&)>;

/// load_checkpoint() of `files` that ranks have agreed on, in a call that is begun, with a last
/// word of the caller's: where `find_problem` objects on any rank, every rank throws c10::Error
/// with what it says, and nothing is changed. Does not look at LoadOptions::files. Collective,
/// blocking.
std::optional<LoadedCheckpoint> load_step(Engine& engine, FileSystem& files,
                                          const std::string& directory, const LoadOptions& options,
                                          const FindProblem& find_problem);

}  // namespace tessera::internal
