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

/// State that a program saves besides the engine's state. The program chooses the names: 1 to 900
/// bytes of UTF-8 without control characters.
struct CheckpointExtras {
  /// Saved from rank 0.
  std::map<std::string, std::variant<int64_t, double, std::string>> values = {};
  std::map<std::string, at::Tensor> tensors = {};  ///< saved from rank 0
  /// Saved from every rank, such as the state of its generators. Restored only on the same number
  /// of ranks.
  std::map<std::string, at::Tensor> rank_tensors = {};
};

/// How a checkpoint is saved.
struct SaveOptions {
  CheckpointExtras extras = {};
  /// Text about the run, for people who look at the checkpoint: model, data, options. Saved from
  /// rank 0.
  std::map<std::string, std::string> notes = {};
  /// If true, files and directories get the modes 0666 and 0777 less the umask, so that several
  /// users of a group can resume the run (umask 002). If false, 0600 and 0700: only this user has
  /// access.
  bool group_access = false;
  /// The file system of `directory`; null: this machine's. Each rank passes its own object; ranks
  /// that are threads may share one. It must be null if group_access is true.
  std::shared_ptr<FileSystem> files = nullptr;
};

/// Saves the run as "<directory>/step-<N>", N being the number of updates applied so far: the
/// engine's state (StateDict) and `options.extras`. Makes `directory` if it is missing, but not its
/// parent; all ranks must see it under this path. Writes one safetensors file per rank and a
/// manifest, as docs/checkpoint-format.md says. Each rank writes its part of the state directly
/// from the state's memory, in blocks of 1 MiB; every element is written once. After the call the
/// step survives a power failure; before that, nothing exists under the final name. Returns the
/// path. If the file system has no fsync, modes or locks, the step is saved without them, and a
/// line on stderr says what that costs (docs/checkpoints.md).
///
/// Collective, blocking. Throws c10::Error with the same text on every rank if any rank cannot
/// write (disk full, no permission) or sees another directory, if the step exists and is whole (a
/// damaged one is set aside), or if another job saves there. Then there is no new step, unless the
/// text says otherwise, and training can go on. Throws CommError if a rank dies. Call it between
/// steps only, like state_dict().
std::string save_checkpoint(Engine& engine, const std::string& directory,
                            const SaveOptions& options = {});

/// Which checkpoint is loaded.
struct LoadOptions {
  /// Loads only this step; unset: the newest step that passes verification. Equal on all ranks.
  std::optional<int64_t> step = {};
  /// How the checkpoint may differ from the run, if another set of parameters was trained when it
  /// was saved.
  PartialState partial = {};
  /// The file system of `directory`, as SaveOptions::files says. Only for load_checkpoint():
  /// Checkpoints::load() uses CheckpointsOptions::files, and throws c10::Error unless this is null.
  std::shared_ptr<FileSystem> files = nullptr;
};

/// A checkpoint that was loaded.
struct LoadedCheckpoint {
  int64_t step = 0;
  int64_t world = 1;  ///< number of ranks that saved it
  std::string path;
  CheckpointExtras extras;  ///< rank_tensors is empty unless the number of ranks is `world`
  std::map<std::string, std::string> notes;
  /// True if the step had only a model, from `tessera-checkpoint import`: then only parameters,
  /// masters and buffers were loaded. The optimizer's state, the number of updates and what
  /// Checkpoints tracks were left unchanged.
  bool is_model_alone = false;
  /// For each step that was passed over because it is damaged, although it is newer than the loaded
  /// one: a line with the file and the reason. Rank 0 has written these lines to stderr.
  std::vector<std::string> rejected;
};

/// Restores the run from a checkpoint in `directory`, bit for bit, whatever strategy, number of
/// ranks and backend saved it. Each rank reads its own part of the state: it verifies the whole
/// part before anything is changed, and verifies it again while it loads it. A step with only a
/// model (LoadedCheckpoint::is_model_alone) may have other dtypes. Returns nothing, and changes
/// nothing, if `directory` does not exist or has no checkpoint.
///
/// Collective, blocking. A newer step that is damaged on any rank (incomplete, altered, a fault of
/// the disk) is passed over for an older one. Throws c10::Error on every rank, with nothing
/// changed, if every step is damaged, a file cannot be read for another reason (no permission,
/// another version of the format), options.step does not exist, ranks see different steps, or the
/// checkpoint is of another model: the text then lists entries that are missing, unknown, or of
/// another shape or dtype. Damage that appears after verification poisons the engine.
std::optional<LoadedCheckpoint> load_checkpoint(Engine& engine, const std::string& directory,
                                                const LoadOptions& options = {});

}  // namespace tessera
