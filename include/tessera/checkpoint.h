#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/file_system.h"
#include "tessera/partial_state.h"

namespace tessera {

class Engine;

/// State that a program saves besides its engine's. The program chooses the names: 1 to 900 bytes
/// of UTF-8 without control characters.
struct CheckpointExtras {
  std::map<std::string, std::variant<int64_t, double, std::string>> values = {};  ///< rank 0's
  std::map<std::string, at::Tensor> tensors = {};                                 ///< rank 0's
  /// Every rank's own, such as the state of its generators. Restored on the same number of ranks
  /// only.
  std::map<std::string, at::Tensor> rank_tensors = {};
};

/// How a checkpoint is saved.
struct SaveOptions {
  CheckpointExtras extras = {};
  /// Text about the run, for people who look at the checkpoint: model, data, options. Rank 0's.
  std::map<std::string, std::string> notes = {};
  /// Files and directories get what the umask leaves of the modes 0666 and 0777, for a run that
  /// several users of a group resume (umask 002). false: 0600 and 0700, for this user alone.
  bool group_access = false;
  /// The file system of `directory`; null: this machine's. Each rank passes its own object; ranks
  /// that are threads may share one. Not together with group_access.
  std::shared_ptr<FileSystem> files = nullptr;
};

/// Saves the run as "<directory>/step-<N>", N being the number of updates applied so far: the
/// engine's state (StateDict) and `options.extras`. The last name of `directory` is made if it is
/// missing; all ranks must see it under this name. One safetensors file per rank and a manifest, as
/// docs/checkpoint-format.md says. Each rank writes the part of the state that it keeps, once, from
/// where it lies, in blocks of 1 MiB. After the call the step survives a power failure; before
/// that, nothing has the final name. Returns the path. If the file system has no fsync, modes or
/// locks, the step is saved without them, and a line on stderr says what that costs
/// (docs/checkpoints.md).
///
/// Collective, blocking. Throws c10::Error with the same text on every rank if any rank cannot
/// write (disk full, no permission) or sees another directory, if the step exists and is whole (a
/// damaged one is set aside), or if another job saves there. Then nothing is left of the step, and
/// training can go on. Throws CommError if a rank dies. Call it between steps only, like
/// state_dict().
std::string save_checkpoint(Engine& engine, const std::string& directory,
                            const SaveOptions& options = {});

/// Which checkpoint is loaded.
struct LoadOptions {
  /// This step and no other; unset: the newest that verifies. Equal on all ranks.
  std::optional<int64_t> step = {};
  /// How it may differ from the run, if other parameters were trained when it was saved.
  PartialState partial = {};
  /// SaveOptions::files, for load_checkpoint() alone: Checkpoints has its own.
  std::shared_ptr<FileSystem> files = nullptr;
};

/// A checkpoint that was loaded.
struct LoadedCheckpoint {
  int64_t step = 0;
  int64_t world = 1;  ///< ranks that saved it
  std::string path;
  CheckpointExtras extras;  ///< rank_tensors are empty unless as many ranks load as saved
  std::map<std::string, std::string> notes;
  /// True if the step had only a model, from `tessera-checkpoint import`: then parameters, masters
  /// and buffers were loaded, and the optimizer's state, the number of updates and tracked values
  /// are unchanged.
  bool is_model_alone = false;
  /// A line for each newer step that is damaged and was passed over: file and reason. Rank 0 has
  /// written them to stderr.
  std::vector<std::string> rejected;
};

/// Restores the run from a checkpoint in `directory`, bit for bit, whatever strategy, number of
/// ranks and backend saved it. Each rank reads the part that it keeps, and verifies all of it first
/// and again while it loads. A step with only a model (LoadedCheckpoint::is_model_alone) may have
/// other dtypes. Returns nothing, and changes nothing, if `directory` does not exist or has no
/// checkpoint.
///
/// Collective, blocking. A newer step that is damaged on any rank (incomplete, altered, a fault of
/// the disk) is passed over for an older one. Throws c10::Error on every rank, with nothing
/// changed, if every step is damaged, a file cannot be read for another reason (no permission,
/// another version of the format), options.step does not exist, ranks see different steps, or the
/// checkpoint is of another model: then it lists entries that are missing, unknown, or of another
/// shape or dtype. Damage that appears after verification poisons the engine.
std::optional<LoadedCheckpoint> load_checkpoint(Engine& engine, const std::string& directory,
                                                const LoadOptions& options = {});

}  // namespace tessera
