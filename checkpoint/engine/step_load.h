#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tessera/checkpoint.h"
#include "tessera/file_system.h"

namespace tessera::internal {

/// Returns why a checkpoint cannot be used; "" if it can be. Only the checkpoint's extras have been
/// read when this is called.
using FindProblem = std::function<std::string(const LoadedCheckpoint&)>;

/// Loads a checkpoint like load_checkpoint(), but reads `files`, on which the ranks have agreed,
/// and ignores LoadOptions::files. The caller has begun the engine's call already
/// (Engine::begin_call()). If `find_problem` returns a problem on any rank, every rank throws
/// c10::Error with that problem, and nothing is changed. Collective, blocking.
std::optional<LoadedCheckpoint> load_step(Engine& engine, FileSystem& files,
                                          const std::string& directory, const LoadOptions& options,
                                          const FindProblem& find_problem);

}  // namespace tessera::internal
