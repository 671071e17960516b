#include "tessera/core/comm/fingerprint.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>
#include <xxhash.h>

#include "tessera/core/comm/text_exchange.h"

namespace tessera {
namespace {

/// Lines never contain it, so that joined lines split again.
constexpr char kSeparator = '\x1f';

std::string first_difference(const std::string& theirs, const std::string& reference) {
  const std::vector<std::string> mine = absl::StrSplit(theirs, kSeparator);
  const std::vector<std::string> zero = absl::StrSplit(reference, kSeparator);
  const size_t common = std::min(mine.size(), zero.size());
  for (size_t i = 0; i < common; ++i) {
    if (mine[i] != zero[i]) {
      return absl::StrCat("at entry ", i, ": '", mine[i], "', rank 0 has '", zero[i], "'");
    }
  }
  if (mine.size() > common) {
    return absl::StrCat("at entry ", common, ": '", mine[common], "', rank 0 has nothing there");
  }
  return absl::StrCat("at entry ", common, ": nothing, rank 0 has '", zero[common], "' there");
}

}  // namespace

void require_equal(ProcessGroup& group, const std::vector<std::string>& lines,
                   std::string_view what) {
  const std::string text = absl::StrJoin(lines, std::string(1, kSeparator));
  const uint64_t hash = XXH3_64bits(text.data(), text.size());
  const std::vector<std::string> hashes = exchange_texts(group, absl::StrCat(hash), "fingerprint");
  if (std::all_of(hashes.begin(), hashes.end(),
                  [&hashes](const std::string& other) { return other == hashes[0]; })) {
    return;
  }
  const std::vector<std::string> texts = exchange_texts(group, text, "fingerprint texts");
  std::string message;
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    absl::StrAppend(&message, message.empty() ? "" : "\n", "[",
                    absl::string_view(what.data(), what.size()), "] rank ", rank,
                    " differs from rank 0 ", first_difference(texts[rank], texts[0]),
                    "; all ranks must pass the same");
  }
  TORCH_CHECK(false, message);
}

}  // namespace tessera
