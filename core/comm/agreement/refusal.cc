#include "tessera/core/comm/agreement/refusal.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "tessera/errors.h"
#include "tessera/process_group.h"

namespace tessera::internal {
namespace {

constexpr size_t kLines = 10;  // of one problem

std::string name_of(const std::vector<int>& some, int size) {
  if (size > 1 && static_cast<int>(some.size()) == size) return "all ranks";
  return absl::StrCat(some.size() == 1 ? "rank " : "ranks ", absl::StrJoin(some, ", "));
}

/// The first lines of `problem`, and how many there are beyond them.
std::string shortened(const std::string& problem) {
  std::vector<std::string> lines = absl::StrSplit(problem, '\n');
  if (lines.size() <= kLines) return problem;
  const size_t more = lines.size() - kLines;
  lines.resize(kLines);
  return absl::StrCat(absl::StrJoin(lines, "\n"), "\n... and ", more, " more");
}

}  // namespace

std::string refusal_text(const std::vector<std::string>& problems, std::string_view what) {
  const int size = static_cast<int>(problems.size());
  std::vector<std::pair<std::string, std::vector<int>>> entries;  // by problem, as first had
  for (int rank = 0; rank < size; ++rank) {
    if (problems[rank].empty()) continue;
    auto entry = std::find_if(entries.begin(), entries.end(),
                              [&](const auto& other) { return other.first == problems[rank]; });
    if (entry == entries.end()) entry = entries.insert(entry, {problems[rank], {}});
    entry->second.push_back(rank);
  }
  const std::string tag = absl::StrCat("[", absl::string_view(what.data(), what.size()), "] ");
  return absl::StrJoin(entries, "\n", [&](std::string* text, const auto& entry) {
    // What comes from the same room has its tag already.
    absl::StrAppend(text, tag, name_of(entry.second, size), ": ",
                    absl::StripPrefix(shortened(entry.first), tag));
  });
}

void refuse_on_all_ranks(ProcessGroup& group, std::string_view problem, std::string_view what) {
  const std::string text = refusal_text(group.all_gather_bytes(problem, "refusal"), what);
  if (!text.empty()) throw ErrorOnAllRanks(text);
}

}  // namespace tessera::internal
