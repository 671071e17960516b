#pragma once

#include <string>

#include "tessera/core/comm/meeting/meeting.h"

namespace tessera::internal {

/// Rank 0's part of a meeting (Note [Meeting]): which processes are the ranks, and have all of them
/// entered the transport? Returns when all have and know it. Throws MeetingFailure, which all
/// members have been told. `place`: what messages call it.
void admit_all(Server& server, const std::string& place, Transport& transport,
               const MeetingOptions& options, Deadline end);

}  // namespace tessera::internal
