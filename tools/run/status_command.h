#pragma once

#include <optional>

namespace tessera::internal {

/// Exit code of `tessera-run --status` where there is no job, or it cannot be looked at.
inline constexpr int kNoJobExit = 69;

/// `tessera-run --status`: prints the table of the job that launcher `job` has started, or of the
/// only one, and returns the exit code. On a terminal it prints it again every second until the job
/// ends or this process is interrupted. With `json`: once, for programs.
int print_status(const std::optional<int>& job, bool json);

}  // namespace tessera::internal
