#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/manifest.h"
#include "tessera/checkpoint/step/shard_layout.h"
#include "tessera/checkpoint/step/shard_writer.h"
#include "tessera/checkpoint/step/step_reader.h"

namespace tessera::internal::testing {

/// A run with made-up state, whose values follow from step, entry and position: a matrix split over
/// all ranks, one in another memory order, one of 2-byte elements on rank 0, a number, an entry
/// without elements, and one with fewer elements than ranks.
struct SmallRun {
  std::string directory = "/run";
  int64_t world = 2;
  std::string nonce = "0123456789abcdef0123456789abcdef";

  std::map<std::string, EntryForm> forms() const;
  /// The bytes of an entry at a step, in its memory order.
  static std::string values(const std::string& name, const EntryForm& form, int64_t step);
  std::vector<ShardPiece> pieces(int64_t rank) const;
  /// A manifest without files and entries.
  Manifest head(int64_t step) const;

  /// Saves all ranks' values, as an engine does; abandons the step after an error.
  absl::Status save(FileSystem& files, int64_t step) const;
  absl::StatusOr<ShardSummary> write_rank(FileSystem& files, const std::string& path, int64_t step,
                                          int64_t rank) const;
  std::string path_of(int64_t step) const;
};

/// The message of a status.
inline std::string text_of(const absl::Status& status) { return std::string(status.message()); }

/// Describes how a reader's values differ from SmallRun::values(); "" if they do not.
std::string wrong_values(StepReader& reader, const SmallRun& run);

}  // namespace tessera::internal::testing
