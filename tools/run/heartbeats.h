#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/process/job_page.h"

namespace tessera::internal {

/// A rank that has been silent for too long.
struct Silence {
  int rank = 0;
  std::string text;  ///< follows the rank's name in the message
};

/// Finds frozen ranks: those in which no step, call or phase has begun or ended for the length of
/// the time-out. A rank that waits for others checks on them again and again, which counts as a
/// sign of life; a rank that is stopped or in an endless loop gives none. Judges only ranks that
/// are in a group, from their first sign of life on.
///
/// Silence counts only while this process runs: after a container or a machine with the launcher in
/// it was paused, no rank counts as frozen yet.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  /// `page` must outlive this.
  Heartbeats(const JobPage& page, std::chrono::milliseconds timeout, Clock::time_point now);

  /// Returns when to look next.
  Clock::time_point next_look() const { return last_look_ + interval_; }
  /// Looks, if it is time to. Returns the rank that has been silent longest, if that is too long.
  /// Ignores ranks whose process has ended.
  std::optional<Silence> look(Clock::time_point now);

 private:
  struct Rank {
    int64_t life_ns = 0;  // at the last look
    Clock::duration silent = {};
  };

  bool is_alive(int rank) const;
  std::string text_of(int rank) const;

  const JobPage& page_;
  const Clock::duration timeout_;
  const Clock::duration interval_;
  Clock::time_point last_look_;
  std::vector<Rank> ranks_;
};

}  // namespace tessera::internal
