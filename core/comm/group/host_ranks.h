#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tessera/core/comm/flight_recorder/flight_recorder.h"

namespace tessera::internal {

/// The ranks of one host, as seen by a rank that also communicates with other hosts. A failure
/// between hosts fails these ranks, and a failure of these ranks is passed on to the other hosts.
class HostRanks {
 public:
  virtual ~HostRanks() = default;
  /// Any thread, does not block. Returns why these ranks have failed; "" if they have not. It is a
  /// failure if a process has ended before its rank's last group was destroyed, even if no rank has
  /// noticed it yet.
  virtual std::string failure() = 0;
  /// Returns the cause of the failure if one of these ranks' processes has ended before its rank's
  /// last group was destroyed; "" if none has.
  virtual std::string lost_rank() = 0;
  /// Any thread. Makes `cause` the failure of these ranks, unless they have failed already.
  /// `is_author`: whether this rank is the failure's author; then calls that it has begun may still
  /// end well on other ranks (Note [Failure]).
  virtual void fail(std::string_view cause, bool is_author) noexcept = 0;
  /// Any thread. flights(): this rank's recorder, which the other ranks of its host can read.
  /// dump_flights(): writes the recorders of all ranks of the host, once, to the directory in
  /// TESSERA_FLIGHT_DUMP.
  virtual std::shared_ptr<FlightRing> flights() = 0;
  virtual void dump_flights(std::string_view cause) noexcept = 0;
  /// Called when this rank's process ends. Blocks until the collectives that a thread advances have
  /// ended. Then says that this rank makes no more calls in any group.
  virtual void leave() = 0;
};

}  // namespace tessera::internal
