#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoint/directory/run_directory.h"
#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/process_group.h"
#include "tessera/state_stream.h"
#include "tessera/strategy.h"

namespace tessera::internal {

/// Returns `files`, or if that is null this machine's, with `group_access`. Collective, blocking.
/// Throws c10::Error on every rank if ranks pass different ones, or both are set.
std::shared_ptr<FileSystem> agreed_files(ProcessGroup& group, std::shared_ptr<FileSystem> files,
                                         bool group_access);

/// Rank 0 opens the directory of a run for saving; the others get null. Collective, blocking.
/// Throws c10::Error on every rank with the error of RunDirectory::open(), or if a rank sees
/// another directory there, as on a host that does not share it. `files` must outlive the result.
std::unique_ptr<RunDirectory> open_run_directory(FileSystem& files, ProcessGroup& group,
                                                 const std::string& directory);

/// One step that all ranks of a group save together. The destructor removes, on rank 0, a step that
/// was begun and not committed. Belongs to one thread.
class StepSave {
 public:
  /// Equal on all ranks, except as CheckpointExtras says.
  struct Contents {
    int64_t step = 0;
    Degrees degrees;
    SaveOptions options;
    /// If set, steps with a higher number do not belong to this run, which has gone back on
    /// purpose, and are set aside. If unset, an existing step of the same number is an error,
    /// unless it is damaged.
    std::optional<int64_t> rewound_to = std::nullopt;
  };

  /// `run` comes from open_run_directory(). References must outlive this.
  StepSave(FileSystem& files, ProcessGroup& group, RunDirectory* run, std::string directory,
           Contents contents);
  ~StepSave();
  StepSave(const StepSave&) = delete;
  StepSave& operator=(const StepSave&) = delete;

  /// Collective, blocking; once. `write` gives the sink this rank's part of the state and throws
  /// what the sink throws. Throws c10::Error on every rank as save_checkpoint() says. Returns the
  /// step's path.
  std::string save(const std::function<void(StateSink&)>& write);

 private:
  void begin();
  absl::Status begin_here();
  bool has_damaged_step() const;
  std::vector<std::string> write_files(const std::function<void(StateSink&)>& write);
  absl::Status commit_here(const std::vector<std::string>& texts);

  FileSystem& files_;
  ProcessGroup& group_;
  RunDirectory* const run_;
  const std::string directory_;
  const Contents contents_;
  std::string nonce_;
  bool is_begun_ = false;
};

}  // namespace tessera::internal
