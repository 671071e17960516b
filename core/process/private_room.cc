#include "tessera/core/process/private_room.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <map>

namespace tessera::internal {
namespace {

/// The lines "Name:  123 kB" of a file of the kernel, in bytes.
std::map<std::string, int64_t> kernel_bytes(const char* path) {
  std::map<std::string, int64_t> bytes;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.ends_with(" kB")) continue;
    bytes[line.substr(0, colon)] = std::stoll(line.substr(colon + 1)) * 1024;
  }
  return bytes;
}

void take_least(PrivateRoom& room, int64_t bytes, const char* limit) {
  if (bytes < room.bytes) room = {std::max<int64_t>(bytes, 0), limit};
}

void consider_limit(PrivateRoom& room, __rlimit_resource resource, int64_t used_bytes,
                    const char* name) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(INT64_MAX)) {
    return;
  }
  take_least(room, static_cast<int64_t>(limit.rlim_cur) - used_bytes, name);
}

}  // namespace

PrivateRoom private_room() {
  PrivateRoom room;
  auto process = kernel_bytes("/proc/self/status");
  consider_limit(room, RLIMIT_DATA, process["VmData"], "ulimit -d");
  consider_limit(room, RLIMIT_AS, process["VmSize"], "ulimit -v");
  int overcommit = 0;
  if (std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit && overcommit == 2) {
    auto host = kernel_bytes("/proc/meminfo");
    take_least(room, host["CommitLimit"] - host["Committed_AS"], "vm.overcommit_memory = 2");
  }
  return room;
}

}  // namespace tessera::internal
