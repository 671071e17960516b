#pragma once

#include <optional>

namespace tessera::internal {

/// Exit code of `tessera-run --status` if there is no job, or the job cannot be inspected.
inline constexpr int kNoJobExit = 69;

/// Runs `tessera-run --status`: prints the table of the job of launcher `job`, or of the only job,
/// and returns the exit code. On a terminal, prints it every second until the job ends or this
/// process is interrupted. With `json`, prints once, for programs.
int print_status(const std::optional<int>& job, bool json);

}  // namespace tessera::internal
