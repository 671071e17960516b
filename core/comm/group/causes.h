#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/comm/group/call.h"
#include "tessera/core/comm/group/link.h"

namespace tessera::internal {

/// The first two of the ranks' calls with this number that differ, of those that are known: "rank 1
/// called ... where rank 0 called ..."; or two that ask for one slice. "" if none do. Equal on all
/// ranks when all are known.
std::string difference(const Link& link, int64_t sequence);

/// Whether the rank is known to be in another call than this one.
bool is_in_other_call(const Link& link, int rank, const Call& call);

/// Warns, once, of a call that has waited as long as `patience` says: for which ranks, and where
/// those were last seen.
void report_if_long(const Link& link, Call& call, const std::vector<int>& missing,
                    Call::Clock::time_point now, const Patience& patience);

}  // namespace tessera::internal
