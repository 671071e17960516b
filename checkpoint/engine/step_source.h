#pragma once

#include <map>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "tessera/checkpoint/step/step_reader.h"
#include "tessera/state_stream.h"

namespace tessera::internal {

/// Reads a rank's part of a run's state from a committed step. Belongs to one thread.
class StepSource : public StateSource {
 public:
  /// `reader` must outlive this.
  explicit StepSource(StepReader& reader);

  const std::map<std::string, StateEntry>& entries() const override { return entries_; }
  /// Reads and verifies all values of `needed`. Returns the first error's message; "" if there is
  /// none.
  std::string problem_of(const std::vector<StateOutline>& needed) override;
  /// Throws c10::Error with the reader's message.
  void read(const std::string& name, int64_t begin, const at::Tensor& to) override;

  /// Returns the error that problem_of() found; OK if none.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status verify(const StateOutline& outline);

  StepReader& reader_;
  std::map<std::string, StateEntry> entries_;
  absl::Status status_;
};

/// Reads the whole entry `name` of `reader`'s step, in the entry's memory order. For small entries.
absl::StatusOr<at::Tensor> read_tensor(StepReader& reader, const std::string& name);

}  // namespace tessera::internal
