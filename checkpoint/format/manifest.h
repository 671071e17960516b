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

/// The location of elements [begin, end) of an entry, in its memory order.
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

/// A number or text that a run saves beside its tensors.
using Extra = std::variant<int64_t, double, std::string>;

/// The content of a step. docs/checkpoint-format.md specifies its text.
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

  /// Returns what is inconsistent, "got X, expected Y", a line each and at most 8; "" if nothing.
  /// Checks that every element of every entry lies in exactly one place, every byte of a file's
  /// data belongs to an element, and names and numbers are allowed by the format.
  std::string problem() const;

  /// InvalidArgument with problem(), or if the text is too long.
  absl::StatusOr<std::string> to_text() const;
  /// Parses `text`. InvalidArgument says what is wrong; Unimplemented if it has another version of
  /// the format. Takes a bounded multiple of the text's memory.
  static absl::StatusOr<Manifest> from_text(std::string_view text);

  /// Returns what follows `text` at the end of a manifest: its checksum. The length is constant.
  static std::string trailer(std::string_view text);

  bool operator==(const Manifest&) const = default;
};

}  // namespace tessera::internal
