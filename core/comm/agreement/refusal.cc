#include "tessera/core/comm/agreement/refusal.h"

#include <algorithm>
#include <map>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/core/comm/agreement/disagreement.h"
#include "tessera/core/comm/agreement/text_exchange.h"
#include "tessera/errors.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongestPause = std::chrono::milliseconds(20);
// How long rank 0, whose end may be the store's end, waits for the others to read.
constexpr auto kLinger = std::chrono::seconds(2);

std::string problem_key(int rank) { return absl::StrCat("problem/", rank); }
std::string read_key(int rank) { return absl::StrCat("problem read/", rank); }

/// Ranks whose key of the given kind is not there when it is time to stop waiting.
std::vector<int> await(const StoreRanks& ranks, std::string (*key)(int rank),
                       Clock::duration patience) {
  const auto deadline = Clock::now() + patience;
  auto pause = std::chrono::milliseconds(1);
  std::vector<int> missing(ranks.size);
  for (int rank = 0; rank < ranks.size; ++rank) missing[rank] = rank;
  while (true) {
    std::erase_if(missing, [&](int rank) { return ranks.store.check({key(rank)}); });
    if (missing.empty() || Clock::now() > deadline) return missing;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

std::string name_of(const std::vector<int>& some, int size) {
  if (static_cast<int>(some.size()) == size) return "all ranks";
  return absl::StrCat(some.size() == 1 ? "rank " : "ranks ", absl::StrJoin(some, ", "));
}

}  // namespace

void refuse_together(ProcessGroup& group, std::string_view problem, std::string_view what) {
  const std::vector<std::string> problems = exchange_texts(group, problem, "refusal");
  std::string message;
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    absl::StrAppend(&message, message.empty() ? "" : "\n", "[",
                    absl::string_view(what.data(), what.size()), "] rank ", rank, ": ",
                    problems[rank]);
  }
  if (!message.empty()) throw Disagreement(message);
}

void refuse_together(const StoreRanks& ranks, std::string_view problem, std::string_view what) {
  ranks.store.set(problem_key(ranks.rank), std::string(problem));
  const std::vector<int> missing = await(ranks, problem_key, bounded(ranks.timeout));
  if (!missing.empty()) {
    throw CommError({"init_process_group", "world", -1, ranks.rank, std::string(what)},
                    absl::StrCat("timed out after ", ranks.timeout.count(),
                                 " ms: ", name_of(missing, ranks.size),
                                 " came, but did not report success or failure"));
  }
  TORCH_CHECK(ranks.size > 1 || problem.empty(), std::string(problem));
  std::map<std::string, std::vector<int>> ranks_of;  // by problem
  for (int rank = 0; rank < ranks.size; ++rank) {
    const std::string text = ranks.store.get_to_str(problem_key(rank));
    if (!text.empty()) ranks_of[text].push_back(rank);
  }
  if (ranks_of.empty()) return;
  ranks.store.set(read_key(ranks.rank), "yes");
  if (ranks.rank == 0) await(ranks, read_key, kLinger);
  std::string message;
  for (const auto& [text, some] : ranks_of) {
    absl::StrAppend(&message, message.empty() ? "" : "\n", "[",
                    absl::string_view(what.data(), what.size()), "] on ", name_of(some, ranks.size),
                    ": ", text);
  }
  throw Disagreement(message);
}

}  // namespace tessera::internal
