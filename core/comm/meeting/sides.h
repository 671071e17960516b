#pragma once

#include <string>

#include "tessera/core/comm/meeting/meeting.h"

namespace tessera::internal {

// The two sides of a meeting, and how a rank comes to its own (Note [Meeting]). All throw
// MeetingFailure.

/// Rank 0 listens at the place, or enters if another rank 0 listens there, which has to hear of it.
/// The others wait for rank 0 and enter. At the deadline the failure says what was found: an
/// unknown host name, a closed port, no answer, a program that is not a rank of this job, a stopped
/// process.
Meeting::Side arrive(Place& place, const MeetingOptions& options, Deadline end);

/// Rank 0's part: which processes are the ranks, and have all of them entered the transport?
/// Returns when all have and know it. All members have been told of a failure. `place`: what
/// messages call it.
void admit_all(Server& server, const std::string& place, Transport& transport,
               const MeetingOptions& options, Deadline end);

/// The part of a rank that is connected to rank 0. Returns when all ranks have entered the
/// transport.
void attend(Connection& connection, Transport& transport, const MeetingOptions& options,
            Deadline end);

}  // namespace tessera::internal
