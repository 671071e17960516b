#include "tessera/core/process/process_status.h"

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
  const size_t end_of_name = line.rfind(')');  // the name itself may hold anything
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

}  // namespace tessera::internal
