#include "tessera/core/comm/groups/departure.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

namespace tessera::internal {
namespace {

constexpr const char* kLeft = " left the group after ";

}  // namespace

std::string departure_cause(const std::string& name, int64_t collectives) {
  return absl::StrCat(name, kLeft, collectives, " collectives");
}

std::optional<int> departed_rank(const std::string& cause) {
  const size_t end = cause.find(kLeft);
  if (end == std::string::npos) return std::nullopt;
  absl::string_view name = absl::string_view(cause).substr(0, end);
  absl::ConsumeSuffix(&name, " of the world");
  int rank = 0;
  if (!absl::ConsumePrefix(&name, "rank ") || !absl::SimpleAtoi(name, &rank)) return std::nullopt;
  return rank;
}

}  // namespace tessera::internal
