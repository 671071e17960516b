#include "tessera/core/comm/agreement/fingerprint.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <xxhash.h>

#include "tessera/errors.h"
#include "tessera/process_group.h"

namespace tessera::internal {
namespace {

constexpr size_t kShownRanks = 4;

/// Every line with a 0 byte behind it, so that different lists never have the same bytes.
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

/// Of two lists that differ.
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
