#include "tessera/core/comm/agreement/fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <xxhash.h>

#include "tessera/core/comm/agreement/text_exchange.h"
#include "tessera/errors.h"

namespace tessera::internal {
namespace {

constexpr int kShownRanks = 4;

/// Every line with its length before it, so that different lists never have the same bytes.
std::string serialize(const std::vector<std::string>& lines) {
  std::string bytes;
  for (const std::string& line : lines) {
    const auto length = static_cast<uint64_t>(line.size());
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
    bytes.append(line);
  }
  return bytes;
}

std::vector<std::string> deserialize(std::string_view bytes) {
  std::vector<std::string> lines;
  while (!bytes.empty()) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    lines.emplace_back(bytes.substr(sizeof(length), length));
    bytes.remove_prefix(sizeof(length) + length);
  }
  return lines;
}

std::string entry(const std::vector<std::string>& lines, size_t index) {
  return index < lines.size() ? absl::StrCat("'", lines[index], "'") : "nothing";
}

/// "" if they are equal.
std::string difference(int rank, const std::vector<std::string>& lines,
                       const std::vector<std::string>& expected) {
  const size_t most = std::max(lines.size(), expected.size());
  for (size_t i = 0; i < most; ++i) {
    const bool same = i < lines.size() && i < expected.size() && lines[i] == expected[i];
    if (same) continue;
    std::string text = absl::StrCat("rank ", rank, " differs from rank 0 at entry ", i, ": ",
                                    entry(lines, i), " vs ", entry(expected, i));
    if (lines.size() != expected.size()) {
      absl::StrAppend(&text, " (", lines.size(), " entries vs ", expected.size(), ")");
    }
    return text;
  }
  return "";
}

}  // namespace

void require_equal(ProcessGroup& group, const std::vector<std::string>& lines,
                   std::string_view what) {
  constexpr int64_t kWords = 3;
  const std::string bytes = serialize(lines);
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  at::Tensor own = at::empty({kWords}, at::kLong);
  auto* words = own.mutable_data_ptr<int64_t>();
  words[0] = static_cast<int64_t>(bytes.size());
  words[1] = static_cast<int64_t>(hash.low64);
  words[2] = static_cast<int64_t>(hash.high64);
  at::Tensor all = at::empty({kWords * group.size()}, at::kLong);
  group.all_gather_on_host(all, own, "fingerprint");
  const auto* gathered = all.const_data_ptr<int64_t>();
  bool equal = true;
  for (int rank = 0; rank < group.size(); ++rank) {
    const int64_t* theirs = gathered + rank * kWords;
    equal = equal && std::equal(theirs, theirs + kWords, gathered);
  }
  if (equal) return;
  const std::vector<std::string> texts = exchange_texts(group, bytes, "fingerprint texts");
  const std::vector<std::string> expected = deserialize(texts[0]);
  std::string text;
  int shown = 0;
  for (int rank = 1; rank < group.size(); ++rank) {
    const std::string found = difference(rank, deserialize(texts[rank]), expected);
    if (found.empty()) continue;
    if (shown++ == kShownRanks) {
      absl::StrAppend(&text, "; and more ranks");
      break;
    }
    absl::StrAppend(&text, text.empty() ? "" : "; ", found);
  }
  throw ErrorOnAllRanks(absl::StrCat("[", absl::string_view(what.data(), what.size()), "] ", text,
                                     "; all ranks must pass the same"));
}

}  // namespace tessera::internal
