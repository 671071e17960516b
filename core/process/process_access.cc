#include "tessera/core/process/process_access.h"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <optional>

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

/// The effective user of a process. The owner of its files in /proc is root where it closes itself.
std::optional<uid_t> user_of(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::string word;
  while (file >> word && word != "Uid:") {
  }
  uid_t real = 0;
  uid_t effective = 0;
  if (!(file >> real >> effective)) return std::nullopt;
  return effective;
}

}  // namespace

std::string access_problem(int pid) {
  // The kernel asks here what it asks for the files that are open.
  char target[PATH_MAX];
  const std::string path = absl::StrCat("/proc/", pid, "/exe");
  if (::readlink(path.c_str(), target, sizeof(target)) >= 0) return "";
  if (errno != EACCES && errno != EPERM) return "";
  const std::string said = std::strerror(errno);
  if (const auto user = user_of(pid); user.has_value() && *user != ::geteuid()) {
    return absl::StrCat("it is a process of user ", *user, ", and this one of user ", ::geteuid(),
                        "; start all ranks as one user");
  }
  return absl::StrCat(
      "it is closed to other processes of its user (", said,
      "): its program may be executed but not read (chmod +r), has a set-user-id bit or "
      "capabilities, has called prctl(PR_SET_DUMPABLE, 0), or is in another user namespace "
      "(a rootless container); undo that, or start the ranks by mpirun with TESSERA_BACKEND=mpi "
      "and MPI's own shared memory off (Open MPI: --mca btl self,tcp; MPICH: UCX_TLS=tcp,self)");
}

}  // namespace tessera::internal
