#include "tessera/zero/state/state_claims.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "tessera/process_group.h"
#include "tessera/zero/state/state_remedies.h"
#include "tessera/zero/state/stride_order.h"

namespace tessera::internal {

// Note [Claims format]
// For each entry that it has, a rank sends the slot's number and then either kRefused, or the
// number of runs, the strides (as many as the slot has dimensions), and begin and end of each run.
// A rank sends kRefused for an entry that it reports as unusable. Without that, the entry would be
// reported as missing, too.

namespace {

constexpr int64_t kRefused = -1;

/// Adds `range` to `set` (ascending, disjoint, none adjacent) and returns the parts of `range` that
/// were not in `set`.
std::vector<Range> add(std::vector<Range>& set, Range range) {
  std::vector<Range> fresh;
  if (range.numel == 0) return fresh;
  std::vector<Range> united;
  int64_t next = range.begin;
  int64_t begin = range.begin;
  int64_t end = range.end();
  for (const Range& old : set) {
    if (old.end() < range.begin || old.begin > range.end()) {
      united.push_back(old);
      continue;
    }
    if (old.begin > next) fresh.push_back({next, old.begin - next});
    next = std::max(next, old.end());
    begin = std::min(begin, old.begin);
    end = std::max(end, old.end());
  }
  if (next < range.end()) fresh.push_back({next, range.end() - next});
  united.push_back({begin, end - begin});
  std::sort(united.begin(), united.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  set = std::move(united);
  return fresh;
}

/// Appends to `words`, in the form of Note [Claims format], which elements of `slot` this rank's
/// `entry` has.
void append_entry(size_t slot, const StateEntry& entry, std::vector<int64_t>& words) {
  std::vector<Range> runs;
  for (const StatePiece& piece : entry.pieces) add(runs, {piece.begin, piece.values.numel()});
  words.push_back(static_cast<int64_t>(slot));
  words.push_back(static_cast<int64_t>(runs.size()));
  words.insert(words.end(), entry.strides.begin(), entry.strides.end());
  for (const Range& run : runs) {
    words.push_back(run.begin);
    words.push_back(run.end());
  }
}

std::string to_bytes(const std::vector<int64_t>& words) {
  std::string bytes(words.size() * sizeof(int64_t), '\0');
  if (!words.empty()) std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

std::vector<int64_t> to_words(const std::string& bytes) {
  std::vector<int64_t> words(bytes.size() / sizeof(int64_t));
  if (!words.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

/// Returns the first few gaps in `covered`, like "10 to 20, 30 to 40".
std::string gaps_in(const std::vector<Range>& covered, int64_t numel) {
  constexpr size_t kShown = 8;
  std::vector<Range> present = covered;
  const std::vector<Range> gaps = add(present, {0, numel});
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min(gaps.size(), kShown); ++i) {
    texts.push_back(absl::StrCat(gaps[i].begin, " to ", gaps[i].end()));
  }
  if (gaps.size() > kShown) {
    texts.push_back(absl::StrCat(gaps.size() - kShown, " more runs"));
  }
  return absl::StrJoin(texts, ", ");
}

}  // namespace

StateClaims::StateClaims(ProcessGroup& group, const StateTable& table, const StateDict& state)
    : claims_(table.slots().size()) {
  std::vector<std::string> problems;
  std::vector<int64_t> words;
  for (const auto& [name, entry] : state.entries) {
    const size_t* slot = table.find(name);
    if (slot == nullptr) {
      if (!table.is_left_out(name)) problems.push_back(table.unknown_entry(name));
      continue;
    }
    const std::string unusable = mismatch(entry, table.slots()[*slot]);
    if (unusable.empty()) {
      append_entry(*slot, entry, words);
    } else {
      problems.push_back(absl::StrCat("'", name, "': ", unusable));
      words.push_back(static_cast<int64_t>(*slot));
      words.push_back(kRefused);
    }
  }
  const std::vector<std::string> words_of_rank = group.all_gather_bytes(to_bytes(words), "state");
  const std::vector<std::string> problem_of_rank =
      group.all_gather_bytes(absl::StrJoin(problems, "\n"), "state problems");
  for (int rank = 0; rank < group.size(); ++rank) {
    take(table, rank, rank == group.rank(), to_words(words_of_rank[static_cast<size_t>(rank)]));
  }
  describe(table, problem_of_rank);
}

/// Records the elements that `rank` has. Called for ranks in ascending order, so an element that is
/// already in `covered` belongs to a lower rank.
void StateClaims::take(const StateTable& table, int rank, bool is_own,
                       const std::vector<int64_t>& words) {
  for (size_t next = 0; next < words.size();) {
    const auto slot = static_cast<size_t>(words[next++]);
    Claim& claim = claims_[slot];
    const int64_t runs = words[next++];
    if (runs == kRefused) {
      claim.is_refused = true;
      continue;
    }
    const auto strides_begin = words.begin() + static_cast<std::ptrdiff_t>(next);
    const size_t dimensions = table.slots()[slot].form.sizes.size();
    std::vector<int64_t> strides(strides_begin,
                                 strides_begin + static_cast<std::ptrdiff_t>(dimensions));
    next += dimensions;
    if (claim.first_rank < 0) {
      claim.first_rank = rank;
      claim.strides = strides;
    } else if (claim.strides != strides) {
      claim.is_refused = true;
      conflicts_.push_back(absl::StrCat(
          "'", table.slots()[slot].name, "': got strides ",
          c10::str(at::IntArrayRef(claim.strides)), " from rank ", claim.first_rank, " and ",
          c10::str(at::IntArrayRef(strides)), " from rank ", rank, ", expected the same from all"));
    }
    for (int64_t run = 0; run < runs; ++run, next += 2) {
      const auto fresh = add(claim.covered, {words[next], words[next + 1] - words[next]});
      if (is_own) claim.own.insert(claim.own.end(), fresh.begin(), fresh.end());
    }
  }
}

void StateClaims::describe(const StateTable& table,
                           const std::vector<std::string>& problem_of_rank) {
  // A problem that several ranks have is listed once.
  std::vector<std::string> order;
  std::map<std::string, std::vector<size_t>> ranks_of;
  for (size_t rank = 0; rank < problem_of_rank.size(); ++rank) {
    if (problem_of_rank[rank].empty()) continue;
    const std::vector<std::string> problems = absl::StrSplit(problem_of_rank[rank], '\n');
    for (const std::string& problem : problems) {
      std::vector<size_t>& ranks = ranks_of[problem];
      if (ranks.empty()) order.push_back(problem);
      ranks.push_back(rank);
    }
  }
  std::vector<std::string> lines;
  lines.reserve(order.size());
  for (const std::string& problem : order) {
    lines.push_back(absl::StrCat("rank ", absl::StrJoin(ranks_of[problem], ", "), ": ", problem));
  }
  lines.insert(lines.end(), conflicts_.begin(), conflicts_.end());
  for (size_t slot = 0; slot < claims_.size(); ++slot) {
    const Claim& claim = claims_[slot];
    const StateSlot& expected = table.slots()[slot];
    if (claim.is_refused || (expected.may_lack && !has(slot))) continue;
    const int64_t numel = expected.form.numel();
    if (claim.first_rank < 0 || (claim.covered.empty() && numel > 0)) {
      lines.push_back(absl::StrCat("'", expected.name, "': missing"));
    } else if (numel > 0 && claim.covered.front() != Range{0, numel}) {
      lines.push_back(absl::StrCat("'", expected.name, "': elements ",
                                   gaps_in(claim.covered, numel), " of ", numel, " are missing"));
    }
  }
  problems_ = with_remedies(table, absl::StrJoin(lines, "\n  "));
}

}  // namespace tessera::internal
