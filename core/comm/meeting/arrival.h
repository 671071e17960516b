#pragma once

#include "tessera/core/comm/meeting/meeting.h"

namespace tessera::internal {

/// Rank 0 listens at the place, or enters if another rank 0 listens there, which has to hear of it.
/// The others wait for rank 0 and enter. Throws MeetingFailure; at the deadline it
/// says what was found: an unknown host name, a closed port, no answer, a program that is not a
/// rank of this job, a stopped process.
Meeting::Side arrive(Place& place, const MeetingOptions& options, Deadline end);

}  // namespace tessera::internal
