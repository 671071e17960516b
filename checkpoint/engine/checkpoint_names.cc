#include "tessera/checkpoint/engine/checkpoint_names.h"

#include <absl/strings/str_cat.h>

namespace tessera::internal {

std::string extra_entry(std::string_view name) { return "extra/" + std::string(name); }

std::string rank_entry(int rank, std::string_view name) {
  return absl::StrCat("rank-", rank, "/") + std::string(name);
}

bool is_state_entry(std::string_view entry) {
  return !entry.starts_with("extra/") && !entry.starts_with("rank-");
}

std::string_view name_after(std::string_view entry, std::string_view prefix) {
  return entry.starts_with(prefix) ? entry.substr(prefix.size()) : std::string_view();
}

}  // namespace tessera::internal
