#pragma once

#include <optional>
#include <string>

namespace tessera::internal {

/// How a process introduces itself to its job. Travels as text.
struct Hello {
  static constexpr int kMaxRanks = 65536;

  int rank = 0;
  int world_size = 1;
  int pid = 0;
  std::string host;       ///< machine_id()
  std::string host_name;  ///< machine_name()
  std::string build;  ///< versions, and sizes of shared structures, that must be equal on all ranks
  std::string device;  ///< the kind: "cpu" or "cuda"

  /// Local. Returns the description of this process. `build`: the versions and sizes that must be
  /// equal on all ranks; the version of the meeting's protocol is added.
  static Hello of_this_process(int rank, int world_size, const std::string& device,
                               const std::string& build);

  std::string to_text() const;
  /// Returns nullopt unless every field is valid: 0 <= rank < world_size <= kMaxRanks, a positive
  /// pid.
  static std::optional<Hello> from_text(const std::string& text);

  /// Local. Returns "rank 1 (pid 12)", or "rank 1 (pid 12 on node7)" if it is on another machine.
  std::string name() const;
  /// Local. Returns name() and, if it is known, what the process does: "rank 1 (pid 12), which is
  /// stopped (SIGSTOP or a debugger)".
  std::string state() const;
};

}  // namespace tessera::internal
