#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>
#include <c10/core/ScalarType.h>

namespace tessera::internal {

/// One tensor of a safetensors file: row-major, little-endian.
struct SafetensorsTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  int64_t begin = 0;  ///< in bytes from where the file's data begin
  int64_t end = 0;

  bool operator==(const SafetensorsTensor&) const = default;
};

/// What stands before the data of a safetensors file: 8 bytes with the length of what follows, the
/// least significant first, then JSON. As strict as the Rust loader, and stricter where that is
/// silent: the tensors cover the data exactly, in order and without gaps, names are unique, nothing
/// is there that the format does not have.
/// Source: https://github.com/huggingface/safetensors, safetensors/src/tensor.rs.
struct SafetensorsHeader {
  static constexpr int64_t kLengthBytes = 8;
  static constexpr int64_t kMaxJsonBytes = 100'000'000;  ///< the Rust loader's bound
  /// Data begin at a multiple of this. With the widest dtypes first each tensor is aligned to its
  /// elements.
  static constexpr int64_t kAlignment = 64;

  std::map<std::string, std::string> metadata;  ///< "__metadata__"
  std::vector<SafetensorsTensor> tensors;       ///< in the order of their data

  int64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }

  /// The file's first bytes; data follow. InvalidArgument where the tensors are malformed or too
  /// many for one file.
  absl::StatusOr<std::string> to_bytes() const;

  /// How long the JSON is that follows these first 8 bytes of a file of `file_bytes`.
  /// InvalidArgument where it cannot be: nothing has to be allocated to know that.
  static absl::StatusOr<int64_t> json_bytes(std::string_view first_bytes, int64_t file_bytes);
  /// The header that `json` is, of a file with `data_bytes` after it. InvalidArgument says what is
  /// wrong: "got X, expected Y".
  static absl::StatusOr<SafetensorsHeader> from_json(std::string_view json, int64_t data_bytes);

 private:
  std::string problem() const;
};

}  // namespace tessera::internal
