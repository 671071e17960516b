#include "tessera/core/comm/meeting/announcement.h"

#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

namespace tessera::internal {

std::string Announcement::to_text() const {
  return name.empty() ? absl::StrCat("tcp ", host, " ", port) : absl::StrCat("local ", name);
}

std::optional<Announcement> Announcement::from_text(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  Announcement said;
  if (words.size() == 2 && words[0] == "local" && !words[1].empty()) {
    said.name = words[1];
    return said;
  }
  if (words.size() != 3 || words[0] != "tcp" || words[1].empty() ||
      !absl::SimpleAtoi(words[2], &said.port) || said.port < 1 || said.port > 65535) {
    return std::nullopt;
  }
  said.host = words[1];
  return said;
}

}  // namespace tessera::internal
