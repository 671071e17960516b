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

/// Returns `files`, or, if that is null, this machine's file system with `group_access`.
/// Collective, blocking. Throws c10::Error on every rank if `files` is null on some ranks only, if
/// `group_access` differs between ranks, or if `files` and `group_access` are both set.
std::shared_ptr<FileSystem> agreed_files(ProcessGroup& group, std::shared_ptr<FileSystem> files,
                                         bool group_access);

/// Rank 0 opens the directory of a run for saving; the others get null. Collective, blocking.
/// Throws c10::Error on every rank with the error of RunDirectory::open(), or if a rank sees
/// another directory under that path, for example on a host that does not share it. `files` must
/// outlive the result.
std::unique_ptr<RunDirectory> open_run_directory(FileSystem& files, ProcessGroup& group,
                                                 const std::string& directory);

/// One step that all ranks of a group save together. The destructor removes, on rank 0, a step that
/// was begun and not committed. Belongs to one thread.
class StepSave {
 public:
  /// What to save. Equal on all ranks, except for CheckpointExtras, which says from which ranks
  /// each of its parts is saved.
  struct Contents {
    int64_t step = 0;
    Degrees degrees;
    SaveOptions options;
    /// If set, the run has gone back to this step on purpose, so steps with higher numbers do not
    /// belong to it and are set aside. If unset, an existing step of the same number is an error,
    /// unless it is damaged.
    std::optional<int64_t> rewound_to = std::nullopt;
  };

  /// `run` comes from open_run_directory(). References must outlive this.
  StepSave(FileSystem& files, ProcessGroup& group, RunDirectory* run, std::string directory,
           Contents contents);
  ~StepSave();
  StepSave(const StepSave&) = delete;
  StepSave& operator=(const StepSave&) = delete;

  /// Saves the step and returns its path. Collective, blocking; call it once. `write` writes this
  /// rank's part of the state to the sink and lets the sink's exceptions pass. Throws c10::Error on
  /// every rank, like save_checkpoint().
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
