#include "tessera/core/process/slurm_lists.h"

#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include "tessera/core/process/variable_reader.h"

namespace tessera::internal {

std::optional<int> tasks_of_node(const std::string& list, int node) {
  int64_t first = 0;  // node of the entry
  std::optional<int> found;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    const bool is_repeated = absl::ConsumeSuffix(&entry, ")");
    std::vector<absl::string_view> numbers = absl::StrSplit(entry, "(x");
    if (!is_repeated) numbers.push_back("1");
    const auto tasks = whole_number(numbers.front(), 1, kGreatest);
    const auto nodes = whole_number(numbers.back(), 1, kGreatest);
    if (numbers.size() != 2 || !tasks || !nodes) return std::nullopt;
    if (node >= first && node < first + *nodes) found = static_cast<int>(*tasks);
    first += *nodes;
  }
  return found;
}

std::string first_host(const std::string& list) {
  std::string host;
  absl::string_view rest = list;
  while (true) {
    const size_t end = rest.find_first_of("[,");
    absl::StrAppend(&host, rest.substr(0, end));
    if (end == absl::string_view::npos || rest[end] == ',') return host;
    rest.remove_prefix(end + 1);
    if (!absl::StrContains(rest, ']')) return "";
    absl::StrAppend(&host, rest.substr(0, rest.find_first_of(",-]")));
    rest.remove_prefix(rest.find(']') + 1);
  }
}

}  // namespace tessera::internal
