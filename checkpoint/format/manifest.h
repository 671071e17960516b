#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <absl/status/statusor.h>

#include "tessera/checkpoint/format/entry_form.h"

namespace tessera::internal {

/// Where elements [begin, end) of an entry lie. The elements are numbered in the entry's memory
/// order.
struct ManifestPiece {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t file = 0;    ///< index in Manifest::files
  int64_t offset = 0;  ///< the first element's place in that file, in bytes from the beginning

  bool operator==(const ManifestPiece&) const = default;
};

struct ManifestEntry {
  EntryForm form;
  std::vector<ManifestPiece> pieces;  ///< ascending; none for an entry without elements

  bool operator==(const ManifestEntry&) const = default;
};

struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
  std::vector<uint64_t> checksums;  ///< of its blocks (block_checksums.h)

  bool operator==(const ManifestFile&) const = default;
};

/// A number or text that a run saves beside its tensors.
using Extra = std::variant<int64_t, double, std::string>;

/// The content of a step. docs/checkpoint-format.md specifies its text.
struct Manifest {
  static constexpr int64_t kVersion = 1;
  /// The most bytes that the text of a manifest may have.
  static constexpr int64_t kMaxBytes = 64 << 20;

  std::string nonce;  ///< identifies the save; stored in each of its files
  int64_t step = 0;
  int64_t world = 1;
  std::array<int64_t, 3> degrees{1, 1, 1};  ///< of parameters, gradients, optimizer state
  std::map<std::string, std::string> options;
  std::map<std::string, Extra> extras;
  std::vector<ManifestFile> files;  ///< by rank
  std::map<std::string, ManifestEntry> entries;

  /// Returns what is inconsistent, in at most 8 lines that say "got X, expected Y"; "" if nothing
  /// is. Checks that every element of every entry lies in exactly one place, every byte of a file's
  /// data belongs to an element, and names and numbers are allowed by the format.
  std::string problem() const;

  /// Returns the text of the manifest file. Returns InvalidArgument if problem() is not "", with
  /// that text, or if the result would be longer than kMaxBytes.
  absl::StatusOr<std::string> to_text() const;
  /// Parses `text`. Returns InvalidArgument with what is wrong, or Unimplemented if the text has
  /// another version of the format. Never takes more memory than a fixed multiple of the text's
  /// length.
  static absl::StatusOr<Manifest> from_text(std::string_view text);

  /// Returns the end of a manifest that begins with `text`: the checksum of `text` and the closing
  /// brace. Its length is constant.
  static std::string trailer(std::string_view text);

  bool operator==(const Manifest&) const = default;
};

}  // namespace tessera::internal
