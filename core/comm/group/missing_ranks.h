#pragma once

#include <string>
#include <vector>

#include "tessera/core/comm/group/call.h"
#include "tessera/core/comm/group/link.h"

namespace tessera::internal {

// The ranks that a call of this rank waits for, as its link knows them. None of these functions
// blocks.

/// A rank that a call waits for. `has_gone`: the rank left before it did its part.
struct AwaitedRank {
  int rank;
  bool has_gone;
};

/// Returns the ranks that `call`, which has been announced, waits for.
std::vector<int> awaited(const Link& link, Call& call);
/// Returns true if the rank has left before it finished the call. A rank that left after it
/// finished the call has not gone, because its data may still be on its way.
bool has_gone(const Link& link, int rank, const Call& call);
/// Throws Fault if one of the ranks has gone.
void fail_if_gone(const Link& link, const std::vector<AwaitedRank>& ranks);

/// Returns true if this rank is the lowest-numbered one that is not in `missing`. Only that rank
/// reports the missing ones.
bool is_first_of_waiting(const Link& link, const std::vector<int>& missing);
/// Returns the missing rank to name to the launcher: one that is stopped, if there is one, else the
/// first.
int culprit_among(const Link& link, const std::vector<int>& missing);
/// Returns the first call under way that the rank has made in a group other than `group`; "" if
/// none is known.
std::string call_elsewhere(const Link& link, int rank, const std::string& group);
/// Returns "rank 1 (pid 7), which has finished 3 collectives and is stopped (SIGSTOP), rank 2 ...".
std::string names_of(const Link& link, const std::vector<int>& missing, const std::string& group);

}  // namespace tessera::internal
