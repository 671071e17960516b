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
  std::string text;  ///< what to say of it behind its name
};

/// Finds ranks that are frozen: in no step, no call and no phase has anything begun or ended for as
/// long as the time-out. A rank that waits for others looks for them again and again, and so says
/// that it is alive; one that is stopped, or in an endless loop, does not. Judged are ranks that
/// are in a group, from the first thing that they say.
///
/// Silence counts only while this process could look: when a container, or a machine, with the
/// launcher in it goes on after a pause, nobody is frozen yet.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  /// `page` must outlive this.
  Heartbeats(const JobPage& page, std::chrono::milliseconds timeout, Clock::time_point now);

  /// When to look next.
  Clock::time_point next_look() const { return last_look_ + interval_; }
  /// Looks, if it is time to. The rank that has been silent longest, if that is too long. Of ranks
  /// whose process has ended nothing is expected.
  std::optional<Silence> look(Clock::time_point now);

 private:
  struct Rank {
    int64_t life_ns = 0;  // as it was when last looked
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
