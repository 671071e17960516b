#include "tessera/core/process/process_access.h"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include <absl/strings/str_cat.h>

namespace tessera::internal {

std::string access_problem(int pid) {
  // The kernel asks here what it asks for the files that are open.
  char target[PATH_MAX];
  const std::string path = absl::StrCat("/proc/", pid, "/exe");
  if (::readlink(path.c_str(), target, sizeof(target)) >= 0) return "";
  if (errno != EACCES && errno != EPERM) return "";
  return absl::StrCat(
      "it is closed to this process (", std::strerror(errno),
      "): start all ranks as one user and in one user namespace, from a program that may be read "
      "(chmod +r) and has no set-user-id bit or capabilities; or by mpirun with "
      "TESSERA_BACKEND=mpi and MPI's own shared memory off (Open MPI: --mca btl self,tcp; MPICH: "
      "UCX_TLS=tcp,self)");
}

}  // namespace tessera::internal
