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

/// Does what load_checkpoint() does, within a call that has already begun, with `files`, on which
/// the ranks have agreed. If `find_problem` returns a problem on any rank, every rank throws
/// c10::Error with that problem, and nothing is changed. Ignores LoadOptions::files. Collective,
/// blocking.
std::optional<LoadedCheckpoint> load_step(Engine& engine, FileSystem& files,
                                          const std::string& directory, const LoadOptions& options,
                                          const FindProblem& find_problem);

}  // namespace tessera::internal
