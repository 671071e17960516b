#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::internal {

/// A process's status in /proc/<pid>/stat. Does not use LibTorch.
struct ProcessStatus {
  char state = 0;           ///< 'R' running, 'S' or 'D' sleeping, 'T' or 't' stopped, 'Z' ended
  int parent = 0;           ///< pid of the process that started it; 0 if it cannot be seen
  uint64_t start_time = 0;  ///< in ticks since boot; a later process with this pid has another one

  bool has_ended() const { return state == 'Z' || state == 'X'; }
  /// "is stopped (SIGSTOP or a debugger)", "computes", "sleeps"; "" for other states.
  std::string describe() const;
};

/// Local. Returns the status of process `pid`; nullopt if there is no such process, or /proc does
/// not show it.
std::optional<ProcessStatus> process_status(int pid);

/// Local. Returns ProcessStatus::describe() of process `pid`; "" if its status is not known.
std::string process_activity(int pid);

/// Local. Returns why this process may not open the files that process `pid` of this host has open,
/// such as "it is closed to this process (Permission denied): start all ranks as one user ..."; ""
/// if it may, or if process `pid` has ended.
std::string access_problem(int pid);

}  // namespace tessera::internal
