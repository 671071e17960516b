#include "tessera/core/comm/meeting/announcement.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

namespace tessera::internal {
namespace {

constexpr size_t kMaxWords = 3 + 64;

}  // namespace

std::string Announcement::to_text() const {
  if (!name.empty()) return absl::StrCat(secret, " local ", name);
  return absl::StrCat(secret, " tcp ", port, " ", absl::StrJoin(hosts, " "));
}

std::optional<Announcement> Announcement::from_text(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits(' ', kMaxWords));
  Announcement said;
  for (const std::string& word : words) {
    if (word.empty()) return std::nullopt;
  }
  said.secret = words[0];
  if (words.size() == 3 && words[1] == "local") {
    said.name = words[2];
    return said;
  }
  if (words.size() < 4 || words.size() > kMaxWords || words[1] != "tcp" ||
      !absl::SimpleAtoi(words[2], &said.port) || said.port < 1 || said.port > 65535) {
    return std::nullopt;
  }
  said.hosts.assign(words.begin() + 3, words.end());
  return said;
}

}  // namespace tessera::internal
