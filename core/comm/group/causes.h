#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/comm/group/call.h"
#include "tessera/core/comm/group/link.h"

namespace tessera::internal {

/// "1 collective", "2 collectives".
std::string collectives_text(int64_t count);

/// The first two of the ranks' calls with this number that differ, of those that are known: "rank 1
/// called ... where rank 0 called ..."; or two that ask for one slice. "" if none do. Equal on all
/// ranks when all are known.
std::string difference(const Link& link, int64_t sequence);

/// The ranks that the call, which has been announced, waits for.
std::vector<int> awaited(const Link& link, const Call& call);

/// Of the ranks that hold up the others, the one to name to the launcher: preferably one that is
/// stopped.
int culprit_among(const Link& link, const std::vector<int>& missing);

/// The call of another group than `group` that the rank is in, of several the first; "" if none is
/// known.
std::string call_elsewhere(const Link& link, int rank, const std::string& group);

/// Whether the rank is known to be in another call than this one.
bool is_in_other_call(const Link& link, int rank, const Call& call);

/// "rank 1 (pid 7), which has finished 3 collectives and is stopped (SIGSTOP), rank 2 ...".
std::string names_of(const Link& link, const std::vector<int>& missing, const std::string& group);

/// Of a call that has waited long: whom it waits for and where those were last seen.
std::string long_wait(const Link& link, Call& call, const std::vector<int>& missing,
                      Call::Clock::time_point now);

}  // namespace tessera::internal
