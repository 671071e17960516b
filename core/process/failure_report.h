#pragma once

#include <string_view>

namespace tessera::internal {

/// Note [First failure]
/// ~~~~~~~~~~~~~~~~~~~~
/// When one rank fails, the others fail because they wait for it, often before its process has
/// ended. A launcher that takes the process that ended first would name the wrong rank. So a rank
/// that fails writes a note into the launcher's memory (JobPage) before its peers notice: when it
/// poisons a group, when it misses a peer, and in a terminate handler. The earliest note of the job
/// names the rank that failed first. A rank that gets the failure from the group's poison writes no
/// note. When an exception unwinds a group, its text is not known there; it is added to the note if
/// nothing catches the exception, or if record_errors() does.

/// From now on, this process, rank `rank` of a world of `world_size`, reports to the launcher why
/// it fails. It does so only if tessera-run or launch() has started it and its first world gives it
/// the launcher's rank. With tessera-run --supervise, which gives no ranks, only rank 0 reports.
/// Removes an earlier note. Installs a terminate handler once, which calls the previous one. Local.
/// Any thread.
void report_failures(int rank, int world_size);

/// Notes that this rank fails because of rank `culprit` of its world, or because of itself if
/// `culprit` is negative. If the newest world numbers its ranks differently from the launcher,
/// notes nothing for other culprits. Only the first note counts. Any thread; no effect before
/// report_failures() or in a child of fork().
void report_failure(int culprit, std::string_view text) noexcept;

/// Notes that an exception with this text ends this rank, like report_failure(). If the exception
/// has unwound groups that left a note, adds the text to that note. A process that has not made a
/// world yet finds its launcher through the environment. Any thread.
void report_last_error(std::string_view text);

}  // namespace tessera::internal
