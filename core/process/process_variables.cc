#include "tessera/core/process/process_variables.h"

#include <fstream>
#include <map>
#include <string>

#include <absl/strings/str_cat.h>

namespace tessera::internal {

std::optional<EnvironmentLookup> variables_of_process(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/environ"));
  if (!file.is_open()) return std::nullopt;
  std::map<std::string, std::string> variables;
  std::string entry;
  while (std::getline(file, entry, '\0')) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));  // getenv's is the first
  }
  if (file.bad()) return std::nullopt;
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

}  // namespace tessera::internal
