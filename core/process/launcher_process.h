#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

namespace tessera::internal {

/// A process, and when it began: a pid may be used again.
struct LauncherProcess {
  int pid = 0;
  uint64_t start_time = 0;  ///< in ticks since boot
};

/// Local. The process of this host that started a rank, which is process `pid`, and the others: its
/// nearest ancestor that was not started with the value that it has of `variable`, which the
/// launcher gives to each rank and what is between them (a shell, numactl) passes on. Ancestors
/// that do not show their environment (of another user, setuid) are skipped. NotFound if there is
/// none, or /proc is hidden.
absl::StatusOr<LauncherProcess> find_launcher(const std::string& variable, int pid = ::getpid());

}  // namespace tessera::internal
