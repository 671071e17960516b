#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::internal {

/// Note [Who began it]
/// ~~~~~~~~~~~~~~~~~~~
/// One rank fails and the others then fail for want of it, often before the first has ended: a
/// launcher that looks at which process ended first names the wrong one. So every rank leaves a
/// note in the launcher's memory (JobPage) when it fails, and before it lets its peers know: when
/// it poisons a group, when it misses a peer, and from a terminate handler. The earliest note of
/// the job says who began it. Who learns of a failure from the group's poison leaves none. Where a
/// rank itself is to blame, its note says which collective it began last. An exception that unwinds
/// a group is not known there, so its text is in the note only where nobody catches it.

/// From now on this process, rank `rank` of a world of `world_size`, tells the launcher why it
/// fails, if it was started by tessera-run and its first world numbers it as the launcher does;
/// takes back what it noted before. Chains a terminate handler, once. Local. Any thread.
void report_failures(int rank, int world_size);

/// This process begins a collective: the last one, and how many it has begun, are said where it
/// fails because of itself. Texts are cut to what a line needs. Any thread; no effect before
/// report_failures().
void note_collective(std::string_view op, std::string_view tag, int64_t sequence,
                     std::string_view group) noexcept;

/// Notes that this rank fails because of rank `culprit` of its world, or with a negative number
/// because of itself. `pid` is the culprit's process where it is one of this host: a world need not
/// number its ranks as the launcher does. Only the first note counts; in a child of fork() none
/// does. Any thread; no effect before report_failures().
void report_failure(int culprit, std::string_view text, int pid = 0) noexcept;

}  // namespace tessera::internal
