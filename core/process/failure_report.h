#pragma once

#include <string_view>

namespace tessera::internal {

/// Note [First failure]
/// ~~~~~~~~~~~~~~~~~~~~
/// When one rank fails, the others fail because they wait for it, often before its process has
/// ended. A launcher that takes the process that ended first would name the wrong rank. So a rank
/// that fails writes a note into the launcher's memory (JobPage) before its peers notice: when it
/// poisons a group, when it finds that a peer is missing, and in a terminate handler. The earliest
/// note of the job names the rank that failed first. A rank that gets the failure from the group's
/// poison writes no note. A group that is destroyed while an exception unwinds the stack does not
/// know the exception's text. The text is added to the note later, by the terminate handler if
/// nothing catches the exception, or by record_errors().

/// From now on, this process, rank `rank` of a world of `world_size`, reports to the launcher why
/// it fails. No effect unless tessera-run or launch() has started this process, and its first world
/// gives it the same rank as the launcher. With tessera-run --supervise, which gives no ranks, only
/// rank 0 reports. Removes an earlier note. The first call installs a terminate handler, which
/// calls the previous one. Local. Any thread.
void report_failures(int rank, int world_size);

/// Notes that this rank fails because of rank `culprit` of its world, or because of itself if
/// `culprit` is negative. Another rank is not noted as the culprit if the newest world numbers its
/// ranks differently from the launcher. Only the first note counts. Any thread; no effect before
/// report_failures() or in a child of fork().
void report_failure(int culprit, std::string_view text) noexcept;

/// Like report_failure(), notes that an exception with this text ends this rank. If the exception
/// has unwound groups that left a note, adds the text to that note. A process that has not made a
/// world yet finds its launcher through the environment. Any thread.
void report_last_error(std::string_view text);

}  // namespace tessera::internal
