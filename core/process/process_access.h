#pragma once

#include <string>

namespace tessera::internal {

/// Local. Why this process may not open the files that process `pid` of this host has open, as in
/// "it is closed to this process (Permission denied): start all ranks as one user ..."; "" if it
/// may, or if the process has ended.
std::string access_problem(int pid);

}  // namespace tessera::internal
