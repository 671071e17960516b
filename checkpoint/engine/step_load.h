#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tessera/checkpoint.h"
#include "tessera/file_system.h"

namespace tessera::internal {

/// Returns why a checkpoint, of which only the extras are read yet, cannot be used; "" if it can.
using FindProblem = std::function<std::string(const LoadedCheckpoint&)>;

/// load_checkpoint() of `files`, on which the ranks have agreed, in a call that has begun, with a
/// check by the caller: if `find_problem` returns a problem on any rank, every rank throws
/// c10::Error with it, and nothing is changed. Ignores LoadOptions::files. Collective, blocking.
std::optional<LoadedCheckpoint> load_step(Engine& engine, FileSystem& files,
                                          const std::string& directory, const LoadOptions& options,
                                          const FindProblem& find_problem);

}  // namespace tessera::internal
