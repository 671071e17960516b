#include "tessera/core/comm/agreement/refusal.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <c10/util/Exception.h>

#include "tessera/errors.h"
#include "tessera/process_group.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLines = 10;  // of one problem
constexpr auto kPause = std::chrono::milliseconds(5);

std::string problem_key(int rank) { return absl::StrCat("problem/", rank); }

/// What the rank reports; "" if it has no problem.
std::string await_problem(const RanksAtTable& ranks, int rank, Clock::time_point deadline,
                          std::string_view what) {
  while (true) {
    if (const auto problem = ranks.table.get(problem_key(rank))) return *problem;
    if (Clock::now() > deadline) {
      throw CommError({"init_process_group", "world", -1, ranks.rank, std::string(what)},
                      absl::StrCat("timed out after ", ranks.timeout.count(), " ms: rank ", rank,
                                   " came, but did not report success or failure"));
    }
    std::this_thread::sleep_for(kPause);
  }
}

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

void refuse_on_all_ranks(const RanksAtTable& ranks, std::string_view problem,
                         std::string_view what) {
  ranks.table.set(problem_key(ranks.rank), std::string(problem));
  const auto deadline = Clock::now() + bounded(ranks.timeout);
  std::vector<std::string> problems;
  for (int rank = 0; rank < ranks.size; ++rank) {
    problems.push_back(await_problem(ranks, rank, deadline, what));
  }
  TORCH_CHECK(ranks.size > 1 || problem.empty(), std::string(problem));
  const std::string text = refusal_text(problems, what);
  if (!text.empty()) throw ErrorOnAllRanks(text);
}

}  // namespace tessera::internal
