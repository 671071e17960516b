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
/// when it has entered; when all have, rank 0 says "go". Whatever goes wrong before "go" fails all
/// ranks with one error: a rank number that was given twice, ranks that differ, a death, a rank
/// that gives up or whose time-out has passed, a transport that cannot be opened or entered. Rank 0
/// finds the error or is told it, and tells all ranks. The end of a process closes its connection,
/// so both sides notice it at once.
///
/// Nothing in this folder uses LibTorch: a launcher may meet in the same way.

/// How ranks communicate once they have met. Rank 0 opens the transport, and the others enter it.
/// This base class does nothing; it serves ranks that need only their connections to rank 0.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Returns true if the ranks must be on one host.
  virtual bool is_local() const { return false; }

  /// Called by rank 0 after all ranks have connected. `pids`: the ranks' pids, by rank. Returns the
  /// text with which the other ranks call enter(). An error of open() or enter() becomes the error
  /// of all ranks.
  virtual absl::StatusOr<std::string> open(const std::vector<int>& /*pids*/) { return ""; }
  /// Called by the other ranks, with the text that open() returned on rank 0.
  virtual absl::Status enter(const std::string& /*text*/) { return absl::OkStatus(); }
};

/// Why ranks do not meet.
struct MeetingFailure {
  std::string cause;
  /// True if the place is wrong or the system refuses it, so that waiting does not help. The cause
  /// then names what was given, what was expected and the remedy. If false, all ranks that are
  /// connected give the same cause.
  bool is_place_wrong = false;
};

/// Options of one rank in a meeting.
struct MeetingOptions {
  Hello own;
  std::chrono::milliseconds timeout;  ///< for finding the place and meeting there, together
  Warn warn;
  /// Called when this rank is the first to find a failure, before the other ranks are told of it.
  /// `culprit`: the rank that caused it, or -1 for this one.
  std::function<void(int culprit, const std::string& cause)> report;
};

/// Ranks that have met and are still connected to rank 0.
class Meeting {
 public:
  /// Collective, blocks until all ranks of the job have met at `place` and entered `transport`.
  /// Throws MeetingFailure.
  Meeting(Place& place, Transport& transport, const MeetingOptions& options);

  /// Turns the connections into a table that all ranks share. A thread of rank 0 serves it. A call
  /// of the table blocks for at most `timeout`. Every rank must call make_table() once.
  std::unique_ptr<SharedTable> make_table(std::chrono::milliseconds timeout) &&;

 private:
  /// How this rank takes part: rank 0 has a Server, every other rank a Connection.
  using Side = std::variant<std::unique_ptr<Server>, std::unique_ptr<Connection>>;
  class Search;
  class Admission;
  class Attendance;

  /// On rank 0, listens at the place. If another rank 0 already listens there, this one connects to
  /// it instead, so that both report the conflict. On the other ranks, waits for rank 0 and
  /// connects to it. Throws MeetingFailure: immediately if waiting does not help (is_place_wrong),
  /// otherwise if this has not succeeded by `end`. It says what was found: an unknown host name, a
  /// closed port, no answer, a program that is not a rank of this job, a stopped process.
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
