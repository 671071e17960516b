#include "tessera/core/comm/handshake/heartbeat.h"

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

std::string key_of(const std::string& name) { return absl::StrCat("tessera/beat/", name); }

}  // namespace

void Heartbeat::beat(const std::string& name) {
  const auto now = Clock::now();
  if (now < next_beat_) return;
  next_beat_ = now + kPeriod;
  store_.set(key_of(name), absl::StrCat(++count_));
}

Heartbeat::Sign Heartbeat::sign_of(const std::string& name) {
  const auto count = store_.get(key_of(name));
  const auto now = Clock::now();
  const auto [place, is_new] = seen_.try_emplace(name);
  Seen& seen = place->second;
  if (is_new || seen.count != count) {
    seen.runs = seen.runs || !is_new;
    seen.count = count;
    seen.changed = now;
  }
  if (!seen.runs) return Sign::kNone;
  return now - seen.changed > silence_ ? Sign::kStopped : Sign::kRuns;
}

}  // namespace tessera::internal
