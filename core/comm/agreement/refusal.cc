#include "tessera/core/comm/agreement/refusal.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <xxhash.h>

#include "tessera/errors.h"

namespace tessera::internal {
namespace {

constexpr size_t kLines = 10;  // the most lines shown of one problem
constexpr size_t kShownRanks = 4;

std::string name_of(const std::vector<int>& some, int size) {
  if (size > 1 && static_cast<int>(some.size()) == size) return "all ranks";
  return absl::StrCat(some.size() == 1 ? "rank " : "ranks ", absl::StrJoin(some, ", "));
}

/// Returns the first kLines lines of `problem`, and how many more there are.
std::string shortened(const std::string& problem) {
  std::vector<std::string> lines = absl::StrSplit(problem, '\n');
  if (lines.size() <= kLines) return problem;
  const size_t more = lines.size() - kLines;
  lines.resize(kLines);
  return absl::StrCat(absl::StrJoin(lines, "\n"), "\n... and ", more, " more");
}

/// Appends a 0 byte to every line, so that different lists never have the same bytes.
std::string serialize(const std::vector<std::string>& lines) {
  std::string bytes;
  for (const std::string& line : lines) (bytes += line) += '\0';
  return bytes;
}

std::vector<std::string> deserialize(const std::string& bytes) {
  std::vector<std::string> lines = absl::StrSplit(bytes, '\0');
  lines.pop_back();
  return lines;
}

std::string entry(const std::vector<std::string>& lines, size_t index) {
  return index < lines.size() ? absl::StrCat("'", lines[index], "'") : "nothing";
}

/// Describes the first difference between the lists of `rank` and of rank 0.
std::string difference(int rank, const std::vector<std::string>& lines,
                       const std::vector<std::string>& expected) {
  const auto first =
      std::mismatch(lines.begin(), lines.end(), expected.begin(), expected.end()).first;
  const auto i = static_cast<size_t>(first - lines.begin());
  std::string text = absl::StrCat("rank ", rank, " differs from rank 0 at entry ", i, ": ",
                                  entry(lines, i), " vs ", entry(expected, i));
  if (lines.size() != expected.size()) {
    absl::StrAppend(&text, " (", lines.size(), " entries vs ", expected.size(), ")");
  }
  return text;
}

}  // namespace

std::string refusal_text(const std::vector<std::string>& problems, std::string_view what) {
  const int size = static_cast<int>(problems.size());
  // Each problem, and the ranks that have it.
  std::vector<std::pair<std::string, std::vector<int>>> entries;
  for (int rank = 0; rank < size; ++rank) {
    if (problems[rank].empty()) continue;
    auto entry = std::find_if(entries.begin(), entries.end(),
                              [&](const auto& other) { return other.first == problems[rank]; });
    if (entry == entries.end()) entry = entries.insert(entry, {problems[rank], {}});
    entry->second.push_back(rank);
  }
  const std::string tag = absl::StrCat("[", absl::string_view(what.data(), what.size()), "] ");
  return absl::StrJoin(entries, "\n", [&](std::string* text, const auto& entry) {
    // A problem from the same part of the library starts with this tag already.
    absl::StrAppend(text, tag, name_of(entry.second, size), ": ",
                    absl::StripPrefix(shortened(entry.first), tag));
  });
}

void refuse_on_all_ranks(ProcessGroup& group, std::string_view problem, std::string_view what) {
  const std::string text = refusal_text(group.all_gather_bytes(problem, "refusal"), what);
  if (!text.empty()) throw ErrorOnAllRanks(text);
}

void require_equal(ProcessGroup& group, const std::vector<std::string>& lines,
                   std::string_view what) {
  const std::string bytes = serialize(lines);
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  const std::string own = absl::StrCat(bytes.size(), " ", hash.high64, " ", hash.low64);
  const std::vector<std::string> all = group.all_gather_bytes(own, "fingerprint");
  if (std::count(all.begin(), all.end(), own) == group.size()) return;
  const std::vector<std::string> texts = group.all_gather_bytes(bytes, "fingerprint texts");
  const std::vector<std::string> expected = deserialize(texts[0]);
  std::vector<std::string> found;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    if (found.size() == kShownRanks) {
      found.emplace_back("and more ranks");
      break;
    }
    found.push_back(difference(rank, deserialize(texts[rank]), expected));
  }
  throw ErrorOnAllRanks(absl::StrCat("[", absl::string_view(what.data(), what.size()), "] ",
                                     absl::StrJoin(found, "; "), "; all ranks must pass the same"));
}

}  // namespace tessera::internal
