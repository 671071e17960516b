#include "tessera/core/process/slurm_lists.h"

#include <cstdint>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

namespace tessera::internal {
namespace {

/// A number of at least 1; 0 for anything else.
int count_of(const std::string& text) {
  int count = 0;
  const bool is_number = !text.empty() &&
                         text.find_first_not_of("0123456789") == std::string::npos &&
                         absl::SimpleAtoi(text, &count);
  return is_number ? count : 0;
}

}  // namespace

int tasks_of_node(const std::string& list, int node) {
  int64_t first = 0;  // node of the entry
  int found = 0;
  const std::vector<std::string> entries = absl::StrSplit(list, ',');
  for (const std::string& entry : entries) {
    const size_t bracket = entry.find("(x");
    const int tasks = count_of(entry.substr(0, bracket));
    int nodes = 1;
    if (bracket != std::string::npos) {
      const bool is_closed = absl::EndsWith(entry, ")");
      nodes = is_closed ? count_of(entry.substr(bracket + 2, entry.size() - bracket - 3)) : 0;
    }
    if (tasks == 0 || nodes == 0) return 0;
    if (node >= first && node < first + nodes) found = tasks;
    first += nodes;
  }
  return found;
}

std::string first_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t end = list.find(']', i);
    if (end == std::string::npos) return "";
    const size_t first = list.find_first_of(",-]", i);
    host += list.substr(i + 1, first - i - 1);
    i = end;
  }
  return host;
}

}  // namespace tessera::internal
