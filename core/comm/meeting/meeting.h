#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/core/comm/meeting/connection.h"
#include "tessera/core/comm/meeting/deadline.h"
#include "tessera/core/comm/meeting/hello.h"
#include "tessera/core/comm/meeting/place.h"
#include "tessera/core/comm/meeting/server.h"
#include "tessera/core/comm/meeting/shared_table.h"

namespace tessera::internal {

/// Note [Meeting]
/// ~~~~~~~~~~~~~~
/// Rank 0 listens at the place, the others connect to it and say who they are (Hello). Once each
/// rank has come, rank 0 opens the transport and tells the others how to enter it; they say that
/// they have; when all have, rank 0 says "go". Whatever goes wrong before that is one error on all
/// ranks: a rank number that was given twice, ranks that differ, a death, a rank that gives up or
/// whose time-out is over, a transport that cannot be opened or entered. Rank 0 finds it, or is
/// told it, and tells everybody. The end of a process closes its connection, so both sides notice
/// it at once.
///
/// Nothing in this folder knows LibTorch: a launcher may meet in the same way.

/// How ranks communicate once they have met: rank 0 opens it, the others enter it. By itself it is
/// nothing: the ranks have their connections.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Whether the ranks must be on one host.
  virtual bool is_local() const { return false; }

  /// Called by rank 0 once all have come; `pids` by rank. What the others need to enter. All ranks
  /// hear of an error of this and the next one.
  virtual absl::StatusOr<std::string> open(const std::vector<int>& /*pids*/) { return ""; }
  /// Called by the others.
  virtual absl::Status enter(const std::string& /*text*/) { return absl::OkStatus(); }
};

/// Why ranks do not meet.
struct MeetingFailure {
  std::string cause;
  /// The place is wrong, or the system has none: the cause names what was given, what was expected
  /// and the remedy. Else all ranks that are connected give the same cause.
  bool is_place_wrong = false;
};

/// One rank that comes to a meeting.
struct MeetingOptions {
  Hello own;
  std::chrono::milliseconds timeout;  ///< of the search for the place and the meeting together
  Warn warn;
  /// Takes the reason of a failure that this rank is the first to know, before the others hear of
  /// it: the rank that is to blame, or -1 for this one.
  std::function<void(int culprit, const std::string& cause)> report;
};

/// Ranks that have met and are still connected to rank 0.
class Meeting {
 public:
  /// Collective, blocks until all ranks of the job have met at `place` and entered `transport`.
  /// Throws MeetingFailure.
  Meeting(Place& place, Transport& transport, const MeetingOptions& options);

  /// Keeps the connections, for a table that all of them share; rank 0's thread serves it. A call
  /// blocks for at most `timeout`. To be called on all ranks, and once.
  std::unique_ptr<SharedTable> make_table(std::chrono::milliseconds timeout) &&;

 private:
  /// Rank 0's side, and a member's.
  using Side = std::variant<std::unique_ptr<Server>, std::unique_ptr<Connection>>;
  class Search;
  class Admission;
  class Attendance;

  /// Rank 0 listens at the place, or enters if another rank 0 listens there, which has to hear of
  /// it. The others wait for rank 0 and enter. At the deadline the failure says what was found: an
  /// unknown host name, a closed port, no answer, a program that is not a rank of this job, a
  /// stopped process.
  static Side arrive(Place& place, const MeetingOptions& options, Deadline end);

  /// Rank 0's part: which processes are the ranks, and have all of them entered the transport?
  /// Returns when all have and know it. All members have been told of a failure. `place`: what
  /// messages call it.
  static void admit_all(Server& server, const std::string& place, Transport& transport,
                        const MeetingOptions& options, Deadline end);

  /// The part of a rank that is connected to rank 0. Returns when all ranks have entered the
  /// transport.
  static void attend(Connection& connection, Transport& transport, const MeetingOptions& options,
                     Deadline end);

  Side side_;
};

}  // namespace tessera::internal
