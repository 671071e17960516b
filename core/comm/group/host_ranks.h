#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tessera/core/comm/flight_recorder/flight_recorder.h"

namespace tessera::internal {

/// The ranks of one host, for one of them that communicates with other hosts, too: a failure
/// between hosts fails these ranks, and a failure of these ranks is told to the other hosts.
class HostRanks {
 public:
  virtual ~HostRanks() = default;
  /// Any thread, does not block. Why these ranks have failed; "" if they have not. That the process
  /// of one has ended without leaving is such a cause, though nobody may have seen it so far.
  virtual std::string failure() = 0;
  /// The same if a process has so ended, else "".
  virtual std::string lost_rank() = 0;
  /// Any thread. Makes `cause` the failure of these ranks, unless they have one. What this rank has
  /// begun may still end well if it is the author: Note [Failure].
  virtual void fail(std::string_view cause, bool is_author) noexcept = 0;
  /// Any thread. This rank's recorder, which the others of its host can read, and writing down
  /// those of all of them: where TESSERA_FLIGHT_DUMP says, once.
  virtual std::shared_ptr<FlightRing> flights() = 0;
  virtual void dump_flights(std::string_view cause) noexcept = 0;
  /// This rank makes no more calls in any of their groups, as its process ends. Blocks until what
  /// it has begun in groups of several hosts has ended.
  virtual void leave() = 0;
};

}  // namespace tessera::internal
