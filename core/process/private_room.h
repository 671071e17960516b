#pragma once

#include <cstdint>
#include <string>

namespace tessera::internal {

/// How much more memory of its own this process may map.
struct PrivateRoom {
  int64_t bytes = INT64_MAX;
  std::string limit;  ///< what says so: "ulimit -d"; "" where nothing does
};

/// Local. The least that RLIMIT_DATA, RLIMIT_AS and, where the kernel promises no more memory than
/// there is (vm.overcommit_memory = 2), its commit limit leave.
PrivateRoom private_room();

}  // namespace tessera::internal
