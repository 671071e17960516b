#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/manifest.h"
#include "tessera/checkpoint/step/shard_layout.h"

namespace tessera::internal {

/// Summary of a rank's file, which rank 0 needs to commit the step.
struct ShardSummary {
  std::string nonce;
  int64_t step = 0;
  int64_t rank = 0;
  ManifestFile file;
  std::map<std::string, ManifestEntry> entries;  ///< with this rank's pieces only

  /// to_text() returns the summary as text, to be sent to rank 0. from_text() reverses it;
  /// InvalidArgument if `text` is malformed.
  absl::StatusOr<std::string> to_text() const;
  static absl::StatusOr<ShardSummary> from_text(std::string_view text);

  bool operator==(const ShardSummary&) const = default;
};

/// Writes a rank's file of a step: first the header, then the values as they are given; computes
/// the checksums meanwhile. Keeps one block in memory. After an error every call returns that error
/// again. The file is valid only after finish(). Belongs to one thread.
class ShardWriter {
 public:
  /// Makes the file, with its header, in `directory`. `files` must outlive this.
  static absl::StatusOr<std::unique_ptr<ShardWriter>> create(FileSystem& files,
                                                             const std::string& directory,
                                                             ShardLayout layout);

  /// Writes the next values: `bytes` are the values of the elements of `entry` from element `begin`
  /// on. Pieces must come in the layout's order, each in one or more calls. InvalidArgument if
  /// other values should come next.
  absl::Status add(std::string_view entry, int64_t begin, std::string_view bytes);

  /// Must be called after all values. Fsyncs and closes the file.
  absl::StatusOr<ShardSummary> finish();

 private:
  ShardWriter(ShardLayout layout, std::unique_ptr<WritableFile> file);

  /// Makes add() expect the values of piece number `piece` next, or of the first piece after it
  /// that has values.
  void begin_piece(size_t piece);
  absl::Status check_next(std::string_view entry, int64_t begin, std::string_view bytes) const;
  absl::Status put(std::string_view bytes);
  absl::Status write_block(std::string_view block);

  const ShardLayout layout_;
  const std::unique_ptr<WritableFile> file_;
  absl::Status status_;
  size_t piece_ = 0;  // index of the layout's piece whose values come next
  int64_t next_ = 0;  // the element that comes next
  std::string block_;
  std::vector<uint64_t> checksums_;
};

}  // namespace tessera::internal
