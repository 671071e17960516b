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
  words_.say(key_of(name), absl::StrCat(++count_));
}

Heartbeat::Sign Heartbeat::sign_of(const std::string& name) {
  const auto count = words_.hear(key_of(name));
  const auto now = Clock::now();
  const auto [place, is_new] = heard_.try_emplace(name);
  Heard& heard = place->second;
  if (is_new || heard.count != count) {
    heard.runs = heard.runs || !is_new;
    heard.count = count;
    heard.changed = now;
  }
  if (!heard.runs) return Sign::kNone;
  return now - heard.changed > silence_ ? Sign::kStopped : Sign::kRuns;
}

}  // namespace tessera::internal
