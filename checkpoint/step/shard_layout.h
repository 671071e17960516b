#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "tessera/checkpoint/format/entry_form.h"
#include "tessera/checkpoint/format/manifest.h"
#include "tessera/checkpoint/format/safetensors.h"

namespace tessera::internal {

/// Elements [begin, end) of an entry, in its memory order, that a rank contributes to a step. An
/// entry without elements has one piece, 0 to 0.
struct ShardPiece {
  std::string entry;
  EntryForm form;
  int64_t begin = 0;
  int64_t end = 0;

  bool is_whole() const { return begin == 0 && end == form.numel(); }
  /// Return the name and the shape of the tensor that holds the piece in a file. If the piece is
  /// the whole entry, and the entry is row-major, they are the entry's own. Otherwise the name is
  /// "name#begin-end", and the tensor has one dimension.
  std::string tensor_name() const;
  std::vector<int64_t> tensor_shape() const;
};

/// The save and the rank that a file belongs to.
struct ShardIdentity {
  std::string nonce;
  int64_t step = 0;
  int64_t rank = 0;
  int64_t world = 1;
};

/// The positions of a rank's values in its file, computed before there are any values. Pieces with
/// wider elements come first, so that all values are aligned. Pieces with equally wide elements
/// stay in the given order.
class ShardLayout {
 public:
  /// Local. InvalidArgument names a piece that is malformed or given twice.
  static absl::StatusOr<ShardLayout> make(ShardIdentity identity, std::vector<ShardPiece> pieces);

  const ShardIdentity& identity() const { return identity_; }
  /// Returns the pieces in the order in which their values follow the header, without gaps.
  const std::vector<ShardPiece>& pieces() const { return pieces_; }
  /// Returns the file's first bytes.
  const std::string& header() const { return header_; }
  int64_t file_bytes() const { return file_bytes_; }

  /// Returns the pieces as a manifest has them; ManifestPiece::file is the rank.
  std::map<std::string, ManifestEntry> entries() const;

 private:
  ShardIdentity identity_;
  std::vector<ShardPiece> pieces_;
  std::string header_;
  int64_t file_bytes_ = 0;
};

/// Returns the "__metadata__" of a rank's file: which save, rank and world the file belongs to, and
/// sizes and strides of its entries, so that the file is readable without its manifest.
std::map<std::string, std::string> shard_metadata(const ShardIdentity& identity,
                                                  const std::map<std::string, EntryForm>& forms);

/// Checks that `header` belongs to the file that `manifest` lists for `rank`: it must be from the
/// same save and have the same tensors at the same places. Returns what differs, "got X, expected
/// Y"; "" if nothing. The file's data begin at byte `header_bytes`.
std::string shard_problem(const SafetensorsHeader& header, int64_t header_bytes,
                          const Manifest& manifest, int64_t rank);

}  // namespace tessera::internal
