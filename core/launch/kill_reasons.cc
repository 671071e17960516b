#include "tessera/core/launch/kill_reasons.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <fstream>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/control_groups.h"

namespace tessera::internal {
namespace {

/// Returns the number after "oom_kill" in the file; 0 if the file has none.
int64_t oom_kills_in(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  int64_t count = 0;
  while (file >> name >> count) {
    if (name == "oom_kill") return count;
  }
  return 0;
}

bool is_full(const std::string& path) {
  struct statvfs space;
  return statvfs(path.c_str(), &space) == 0 && space.f_blocks > 0 &&
         space.f_bavail < space.f_blocks / 64;
}

}  // namespace

KillReasons::KillReasons(std::string root) : root_(std::move(root)) {
  for (const std::string& folder : control_group_folders("memory", root_)) {
    counts_.push_back({folder + "/memory.events", true, 0});
    counts_.push_back({folder + "/memory.oom_control", true, 0});  // of control groups of version 1
  }
  counts_.push_back({root_ + "/proc/vmstat", false, 0});
  for (Count& count : counts_) count.before = oom_kills_in(count.path);
}

std::string KillReasons::hint(int signal) const {
  if (signal == SIGKILL) {
    for (const Count& count : counts_) {
      const int64_t kills = oom_kills_in(count.path) - count.before;
      if (kills <= 0) continue;
      return absl::StrCat("since the start the kernel has killed ", kills,
                          kills == 1 ? " process of " : " processes of ",
                          count.is_of_group ? "this job's control group" : "this host",
                          " for lack of memory (", count.path,
                          ", dmesg): use less memory or fewer ranks",
                          count.is_of_group ? ", or raise the container's limit" : "");
    }
    rlimit time;
    if (getrlimit(RLIMIT_CPU, &time) == 0 && time.rlim_max != RLIM_INFINITY) {
      return absl::StrCat("a process may use ", time.rlim_max,
                          " s of CPU time here (ulimit -t): raise that limit");
    }
  }
  if ((signal == SIGKILL || signal == SIGBUS) && is_full(root_ + "/dev/shm")) {
    return "/dev/shm is full: remove old files there, or make it larger (docker run --shm-size)";
  }
  return "";
}

}  // namespace tessera::internal
