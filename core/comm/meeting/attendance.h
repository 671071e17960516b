#pragma once

#include "tessera/core/comm/meeting/meeting.h"

namespace tessera::internal {

/// The part in a meeting of a rank that is connected to rank 0 (Note [Meeting]). Returns when all
/// ranks have entered the transport. Throws MeetingFailure.
void attend(Connection& connection, Transport& transport, const MeetingOptions& options,
            Deadline end);

}  // namespace tessera::internal
