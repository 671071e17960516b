#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <absl/status/statusor.h>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// A rank's record of why it failed.
struct FailureNote {
  int64_t when_ns = 0;  ///< on the host's monotonic clock, which all processes share
  int culprit = 0;      ///< the rank that it says began it: itself or another one
  std::string text;
};

/// Memory in which the ranks of a job record for their launcher why they fail, before their peers
/// learn of it: the earliest record names the rank that failed first. They also record how far they
/// have come, by which the launcher knows whether a restart is worth it. The launcher makes it and
/// passes its address in TESSERA_JOB_PAGE. It needs no file, and no descriptor that a program
/// between launcher and rank could close. Does not use LibTorch, because the launcher does not.
///
/// The content may be invalid if a rank misbehaves, so reads are bounded.
class JobPage {
 public:
  /// Local. The launcher's, for `ranks` ranks. ResourceExhausted without memory or descriptors.
  static absl::StatusOr<std::unique_ptr<JobPage>> create(int ranks);
  /// Local. That of rank `rank`, without an earlier note of it; null where `address` leads to no
  /// page for it: the launcher is gone or in another PID namespace, /proc is hidden. Then the job
  /// does without.
  static std::unique_ptr<JobPage> open(const std::string& address, int rank);
  ~JobPage();
  JobPage(const JobPage&) = delete;
  JobPage& operator=(const JobPage&) = delete;

  /// Where ranks find it, as long as this object lives.
  std::string address() const;

  /// For a rank. Records its failure unless it has a record already; or removes the record, because
  /// the rank goes on. Allocates nothing, never blocks.
  void note_failure(int culprit, std::string_view text) noexcept;
  void forget_failure() noexcept;
  /// For a rank. Records how many steps it has trained, and which step of the job has been saved.
  void note_step(int64_t step) noexcept;
  void note_saved_step(int64_t step) noexcept;
  /// As note_failure() of itself; where there is a record already that the rank has failed by
  /// itself, and not with this text, adds the text to it.
  void explain_failure(std::string_view text) noexcept;

  /// The launcher's. Whether rank `rank` has opened the page, and what it noted.
  bool is_open(int rank) const;
  std::optional<FailureNote> note(int rank) const;
  /// The earliest of all notes.
  std::optional<FailureNote> first_note() const;
  /// How many steps rank `rank` has trained, and the last step of the job that a checkpoint has; 0
  /// where no rank said so.
  int64_t step(int rank) const;
  int64_t saved_step() const;
  int ranks() const { return ranks_; }

 private:
  struct Header;
  struct Record;

  JobPage(FileDescriptor file, char* data, int ranks, int rank);
  static int64_t bytes(int ranks);
  Header& header() const;
  Record& record(int rank) const;

  const FileDescriptor file_;  // the launcher's; none in ranks
  char* const data_;
  const int ranks_;
  const int rank_;  // -1: the launcher
};

}  // namespace tessera::internal
