#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_system.h"
#include "tessera/checkpoint/step/step_reader.h"

namespace tessera::internal {

/// The committed steps in the directory of a run, ascending. By number: no clock is asked. NotFound
/// where there is no such directory.
absl::StatusOr<std::vector<int64_t>> list_steps(FileSystem& files, const std::string& directory);

/// Whether an older step may stand in for one that cannot be used because of `status`: not where it
/// is only forbidden, too new for this reader, or resources are missing.
bool is_damage(const absl::Status& status);

/// How much of a step is verified before it is chosen.
enum class Verification : uint8_t {
  kEveryByte,
  kStructure,  ///< what StepReader::open() does; values when they are read
};

/// The step to load.
struct NewestStep {
  std::unique_ptr<StepReader> reader;  ///< null: there is no committed step
  /// A line for each newer step that is damaged, to be shown: "[checkpoint] step-20 is not used:
  /// <file and reason>; falling back to step-10".
  std::vector<std::string> rejected;
};

/// The newest step that verifies. Falls back to an older one only where a newer one is damaged:
/// incomplete, altered or unreadable by a fault of the disk. Where files may not be read
/// (PermissionDenied), are of another version of the format (Unimplemented), or resources are
/// missing, that is the error: an older step would be the wrong one. DataLoss with all reasons
/// where no step verifies. Local: ranks must agree on the result before they use it.
absl::StatusOr<NewestStep> newest_step(FileSystem& files, const std::string& directory,
                                       Verification verification = Verification::kEveryByte);

}  // namespace tessera::internal
