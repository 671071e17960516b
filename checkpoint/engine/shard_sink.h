#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/step/shard_layout.h"
#include "tessera/checkpoint/step/shard_writer.h"
#include "tessera/state_stream.h"

namespace tessera::internal {

/// Returns the form in which a file stores `entry`.
EntryForm form_of(const StateEntry& entry);

/// Writes a rank's part of a run's state, and the rank's own tensors, into the rank's file of a
/// saved step. Throws nothing: finish() returns the error. Belongs to one thread.
class ShardSink : public StateSink {
 public:
  /// `own`: whole tensors, by entry name, that this rank writes beside its part of the state.
  /// `files` must outlive this.
  ShardSink(FileSystem& files, std::string directory, ShardIdentity identity,
            std::map<std::string, at::Tensor> own);

  void begin(const std::vector<StateOutline>& entries) override;
  void write(size_t entry, int64_t begin, const at::Tensor& values) override;

  /// Must be called after the last write(). Writes the remaining own tensors, fsyncs and closes the
  /// file.
  absl::StatusOr<ShardSummary> finish();

 private:
  absl::Status create(const std::vector<StateOutline>& entries);
  absl::Status add_own_before(const std::string* entry, int64_t begin);

  FileSystem& files_;
  const std::string directory_;
  const ShardIdentity identity_;
  std::map<std::string, at::Tensor> own_;  // contiguous, on the host
  std::vector<std::string> names_;         // names of the state's entries
  std::vector<ShardPiece> pieces_;         // in the order in which they are written
  size_t next_ = 0;                        // index in pieces_ of the piece to write next
  std::unique_ptr<ShardWriter> writer_;
  absl::Status status_;
};

}  // namespace tessera::internal
