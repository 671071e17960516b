#pragma once

#include <memory>

#include "tessera/core/comm/meeting/meeting.h"
#include "tessera/environment.h"
#include "tessera/process_group_options.h"

namespace tessera::internal {

/// Local. Returns the place where the ranks of a job meet: the store or URL that the program gives
/// or, if it gives none, what the environment says. Throws c10::Error that names the variable or
/// option, its value and the remedy.
std::unique_ptr<Place> find_place(const ProcessGroupOptions& options,
                                  const Environment& environment);

/// Collective. Makes the ranks of the job meet at `place`, as Meeting says; `environment` has this
/// rank and the number of ranks. Throws c10::Error if the place is wrong, and CommError if the
/// ranks do not meet.
Meeting meet(Place& place, Transport& transport, const Environment& environment,
             std::chrono::milliseconds timeout, at::Device device);

}  // namespace tessera::internal
