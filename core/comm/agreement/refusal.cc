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
constexpr auto kMaxPause = std::chrono::milliseconds(20);
// How long rank 0, whose end may be the table's end, waits for the others to read.
constexpr auto kLinger = std::chrono::seconds(2);

std::string problem_key(int rank) { return absl::StrCat("problem/", rank); }
std::string read_key(int rank) { return absl::StrCat("problem read/", rank); }

/// Ranks whose key of the given kind is not there when it is time to stop waiting.
std::vector<int> await(const RanksAtTable& ranks, std::string (*key)(int rank),
                       Clock::duration patience) {
  const auto deadline = Clock::now() + patience;
  auto pause = std::chrono::milliseconds(1);
  std::vector<int> missing(ranks.size);
  for (int rank = 0; rank < ranks.size; ++rank) missing[rank] = rank;
  while (true) {
    std::erase_if(missing, [&](int rank) { return ranks.table.has({key(rank)}); });
    if (missing.empty() || Clock::now() > deadline) return missing;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kMaxPause);
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
  const std::vector<int> missing = await(ranks, problem_key, bounded(ranks.timeout));
  if (!missing.empty()) {
    throw CommError({"init_process_group", "world", -1, ranks.rank, std::string(what)},
                    absl::StrCat("timed out after ", ranks.timeout.count(),
                                 " ms: ", name_of(missing, ranks.size),
                                 " came, but did not report success or failure"));
  }
  TORCH_CHECK(ranks.size > 1 || problem.empty(), std::string(problem));
  std::vector<std::string> problems(ranks.size);
  for (int rank = 0; rank < ranks.size; ++rank) {
    problems[rank] = ranks.table.get(problem_key(rank)).value_or("");
  }
  const std::string text = refusal_text(problems, what);
  if (text.empty()) return;
  ranks.table.set(read_key(ranks.rank), "yes");
  if (ranks.rank == 0) await(ranks, read_key, kLinger);
  throw ErrorOnAllRanks(text);
}

}  // namespace tessera::internal
