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
/// Rank 0 listens at the place. The others connect to it and say who they are (Hello). When all
/// ranks have come, rank 0 opens the transport and tells the others how to enter it. Each rank says
/// when it has entered; when all have, rank 0 says "go". Whatever goes wrong before that is one
/// error on all ranks: a rank number that was given twice, ranks that differ, a death, a rank that
/// gives up or whose time-out has passed, a transport that cannot be opened or entered. Rank 0
/// finds the error or is told it, and tells all ranks. The end of a process closes its connection,
/// so both sides notice it at once.
///
/// Nothing in this folder uses LibTorch: a launcher may meet in the same way.

/// How ranks communicate once they have met: rank 0 opens it, the others enter it. This base class
/// does nothing, for ranks that need only their connections to rank 0.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Returns true if the ranks must be on one host.
  virtual bool is_local() const { return false; }

  /// Called by rank 0 after all ranks have connected; `pids` by rank. Returns what the others need
  /// to enter. An error of open() or enter() becomes the error of all ranks.
  virtual absl::StatusOr<std::string> open(const std::vector<int>& /*pids*/) { return ""; }
  /// Called by the others.
  virtual absl::Status enter(const std::string& /*text*/) { return absl::OkStatus(); }
};

/// Why ranks do not meet.
struct MeetingFailure {
  std::string cause;
  /// The place is wrong, or the system has none: the cause names what was given, what was expected
  /// and the remedy. Otherwise all ranks that are connected give the same cause.
  bool is_place_wrong = false;
};

/// Options of one rank in a meeting.
struct MeetingOptions {
  Hello own;
  std::chrono::milliseconds timeout;  ///< for finding the place and meeting together
  Warn warn;
  /// Called with the cause of a failure that this rank finds first, before the other ranks are
  /// told. `culprit`: the rank that caused it, or -1 for this one.
  std::function<void(int culprit, const std::string& cause)> report;
};

/// Ranks that have met and are still connected to rank 0.
class Meeting {
 public:
  /// Collective, blocks until all ranks of the job have met at `place` and entered `transport`.
  /// Throws MeetingFailure.
  Meeting(Place& place, Transport& transport, const MeetingOptions& options);

  /// Uses the connections for a table that all ranks share; a thread of rank 0 serves it. A call of
  /// the table blocks for at most `timeout`. Call make_table() on all ranks, and once.
  std::unique_ptr<SharedTable> make_table(std::chrono::milliseconds timeout) &&;

 private:
  /// Rank 0 has a Server, every other rank a Connection.
  using Side = std::variant<std::unique_ptr<Server>, std::unique_ptr<Connection>>;
  class Search;
  class Admission;
  class Attendance;

  /// Rank 0 listens at the place. If another rank 0 listens there, connects to that one instead, so
  /// that both report the conflict. The others wait for rank 0 and enter. At the deadline the
  /// failure says what was found: an unknown host name, a closed port, no answer, a program that is
  /// not a rank of this job, a stopped process.
  static Side arrive(Place& place, const MeetingOptions& options, Deadline end);

  /// Rank 0's part: decides which processes are the ranks, and whether all have entered the
  /// transport. Returns when all have entered and have been told so. On failure, tells all members.
  /// `place` is the name of the meeting place.
  static void admit_all(Server& server, const std::string& place, Transport& transport,
                        const MeetingOptions& options, Deadline end);

  /// The part of a rank that is connected to rank 0. Returns when all ranks have entered the
  /// transport.
  static void attend(Connection& connection, Transport& transport, const MeetingOptions& options,
                     Deadline end);

  Side side_;
};

}  // namespace tessera::internal
