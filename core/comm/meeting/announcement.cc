#include "tessera/core/comm/meeting/announcement.h"

#include <absl/algorithm/container.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

namespace tessera::internal {

std::string Announcement::to_text() const {
  return absl::StrCat(secret, " ", port, " ", absl::StrJoin(hosts, " "));
}

std::optional<Announcement> Announcement::from_text(const std::string& text) {
  constexpr size_t kMaxWords = 2 + 64;
  const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits(' ', kMaxWords));
  Announcement said;
  if (words.size() < 3 || words.size() > kMaxWords || absl::c_linear_search(words, "") ||
      !absl::SimpleAtoi(words[1], &said.port) || said.port < 0 || said.port > 65535 ||
      (said.port == 0 && words.size() > 3)) {
    return std::nullopt;
  }
  said.secret = words[0];
  said.hosts.assign(words.begin() + 2, words.end());
  return said;
}

}  // namespace tessera::internal
