#include "tessera/core/process/slurm_lists.h"

#include <limits>
#include <vector>

#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "tessera/core/process/variable_reader.h"

namespace tessera::internal {
namespace {

/// A number of at least 1; 0 for anything else.
int64_t count_of(absl::string_view text) {
  return whole_number(text, 1, std::numeric_limits<int>::max()).value_or(0);
}

}  // namespace

int64_t tasks_of_node(const std::string& list, int node) {
  int64_t first = 0;  // node of the entry
  int64_t found = 0;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    const bool is_repeated = absl::ConsumeSuffix(&entry, ")");
    std::vector<absl::string_view> numbers = absl::StrSplit(entry, "(x");
    if (!is_repeated) numbers.push_back("1");
    const int64_t tasks = count_of(numbers[0]), nodes = count_of(numbers.back());
    if (numbers.size() != 2 || tasks == 0 || nodes == 0) return 0;
    if (node >= first && node < first + nodes) found = tasks;
    first += nodes;
  }
  return found;
}

std::string first_host(const std::string& list) {
  std::string host;
  bool is_inside = false;  // of brackets, of which the first number counts
  bool is_first = true;
  for (const char c : list) {
    if (c == ',' && !is_inside) break;
    if (c == '[' || c == ']') {
      is_inside = c == '[';
      is_first = true;
    } else if (is_inside && (c == ',' || c == '-')) {
      is_first = false;
    } else if (is_first) {
      host += c;
    }
  }
  return is_inside ? "" : host;
}

}  // namespace tessera::internal
