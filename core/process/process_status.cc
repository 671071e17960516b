#include "tessera/core/process/process_status.h"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <sstream>

#include <absl/strings/str_cat.h>

namespace tessera::internal {

std::string ProcessStatus::describe() const {
  switch (state) {
    case 'T':
    case 't':
      return "is stopped (SIGSTOP or a debugger)";
    case 'R':
      return "computes";
    case 'S':
    case 'D':
      return "sleeps";
    default:
      return "";
  }
}

std::optional<ProcessStatus> process_status(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t end_of_name = line.rfind(')');  // the name itself may contain any character
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream rest(line.substr(end_of_name + 1));
  ProcessStatus status;
  std::string skipped;
  rest >> status.state >> status.parent;
  constexpr int kFieldsToStartTime = 17;
  for (int i = 0; i < kFieldsToStartTime; ++i) rest >> skipped;
  rest >> status.start_time;
  if (!rest) return std::nullopt;
  return status;
}

std::string process_activity(int pid) {
  const std::optional<ProcessStatus> status = process_status(pid);
  return status ? status->describe() : "";
}

std::string access_problem(int pid) {
  // Reading this link needs the same permission as opening the files that the process has open.
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
