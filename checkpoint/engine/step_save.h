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

/// `files`, or this machine's where that is null, made as `group_access` says. Collective,
/// blocking. Throws c10::Error on every rank where ranks pass different ones, or both are set.
std::shared_ptr<FileSystem> agreed_files(ProcessGroup& group, std::shared_ptr<FileSystem> files,
                                         bool group_access);

/// Rank 0 opens the directory of a run for saving; the others get null. Collective, blocking.
/// Throws c10::Error on every rank with what RunDirectory::open() says, or if a rank sees another
/// directory there, as on a host that does not share it. `files` must outlive it.
std::unique_ptr<RunDirectory> open_run_directory(FileSystem& files, ProcessGroup& group,
                                                 const std::string& directory);

/// One step that all ranks of a group save together. What it begins and does not commit is removed
/// by its destructor, on rank 0. Belongs to one thread.
class StepSave {
 public:
  /// Equal on all ranks, but for what CheckpointExtras says.
  struct Contents {
    int64_t step = 0;
    Degrees degrees;
    SaveOptions options;
    /// Steps of a higher number are no past of this run, which has gone back on purpose: they are
    /// set aside. Unset, a step of the same number is an error, unless it is damaged.
    std::optional<int64_t> rewound_to = std::nullopt;
  };

  /// `run` is open_run_directory()'s. References must outlive it.
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
