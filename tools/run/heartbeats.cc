#include "tessera/tools/run/heartbeats.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tessera/core/process/process_status.h"

namespace tessera::internal {
namespace {

constexpr std::chrono::milliseconds kShortestInterval(10);
constexpr std::chrono::milliseconds kLongestInterval(1000);

}  // namespace

Heartbeats::Heartbeats(const JobPage& page, std::chrono::milliseconds timeout,
                       Clock::time_point now)
    : page_(page),
      timeout_(timeout),
      interval_(std::clamp(timeout / 10, kShortestInterval, kLongestInterval)),
      last_look_(now),
      ranks_(static_cast<size_t>(page.ranks())) {}

std::optional<Silence> Heartbeats::look(Clock::time_point now) {
  if (now < next_look()) return std::nullopt;
  const Clock::duration passed = std::min(now - last_look_, 2 * interval_);
  last_look_ = now;
  int longest = 0;
  for (int rank = 0; rank < page_.ranks(); ++rank) {
    Rank& known = ranks_[static_cast<size_t>(rank)];
    const int64_t life_ns = page_.progress(rank).life_ns();
    const bool is_silent = life_ns != 0 && life_ns == known.life_ns && is_alive(rank);
    known.silent = is_silent ? known.silent + passed : Clock::duration::zero();
    known.life_ns = life_ns;
    if (known.silent > ranks_[static_cast<size_t>(longest)].silent) longest = rank;
  }
  if (ranks_[static_cast<size_t>(longest)].silent < timeout_) return std::nullopt;
  return Silence{longest, text_of(longest)};
}

/// Returns true if the process that reported signs of life still runs: a script may outlive its
/// program.
bool Heartbeats::is_alive(int rank) const {
  const RankRecord record = page_.rank_record(rank);
  if (record.wait_status.has_value()) return false;
  const auto status = process_status(record.own_pid);
  return status.has_value() && !status->has_ended();
}

std::string Heartbeats::text_of(int rank) const {
  const RankProgress& progress = page_.progress(rank);
  const double seconds = std::chrono::duration<double>(timeout_).count();
  const bool is_supervised = page_.outline().is_supervised;
  std::string text = absl::StrCat(is_supervised ? "is ended, as its rank 0" : "is killed, as it",
                                  " has begun and finished nothing for ", seconds,
                                  " s (--heartbeat-timeout): it ");
  const std::string activity = process_activity(page_.rank_record(rank).own_pid);
  absl::StrAppend(&text, activity.empty() ? "is silent" : activity);
  if (const auto wait = progress.wait()) {
    absl::StrAppend(&text, ", in ", wait->call);
  } else if (const char* const phase = phase_name(progress.phase()); *phase != '\0') {
    absl::StrAppend(&text, ", in phase ", phase);
  }
  if (progress.step() > 0) absl::StrAppend(&text, ", after step ", progress.step());
  return text;
}

}  // namespace tessera::internal
