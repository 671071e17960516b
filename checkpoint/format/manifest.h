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

/// Where elements [begin, end) of an entry lie, in the order of its memory.
struct ManifestPiece {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t file = 0;    ///< index in Manifest::files
  int64_t offset = 0;  ///< of the first element in that file, in bytes from the file's beginning

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

/// A number or text that a run keeps beside its tensors.
using Extra = std::variant<int64_t, double, std::string>;

/// All that a step is made of. docs/checkpoint-format.md specifies its text.
struct Manifest {
  static constexpr int64_t kVersion = 1;
  static constexpr int64_t kMaxBytes = 64 << 20;  ///< of its text

  std::string nonce;  ///< of the save; in every file of it
  int64_t step = 0;
  int64_t world = 1;
  std::array<int64_t, 3> degrees{1, 1, 1};  ///< of parameters, gradients, optimizer state
  std::map<std::string, std::string> options;
  std::map<std::string, Extra> extras;
  std::vector<ManifestFile> files;  ///< by rank
  std::map<std::string, ManifestEntry> entries;

  /// What is inconsistent, "got X, expected Y", a line each and at most 8; "" if nothing: every
  /// element of every entry lies in exactly one place, every byte of a file's data is some
  /// element's, names and numbers are such as the format allows.
  std::string problem() const;

  /// InvalidArgument with problem(), or where the text is too long.
  absl::StatusOr<std::string> to_text() const;
  /// The manifest that `text` is. InvalidArgument says what is wrong; Unimplemented where another
  /// version of the format wrote it. Takes memory for a bounded multiple of the text.
  static absl::StatusOr<Manifest> from_text(std::string_view text);

  /// What the text of a manifest ends with, after `text`: its checksum. Of one length.
  static std::string trailer(std::string_view text);

  bool operator==(const Manifest&) const = default;
};

}  // namespace tessera::internal
