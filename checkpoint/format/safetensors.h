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

/// The header of a safetensors file: 8 bytes with the length of the JSON, the least significant
/// first, then the JSON. Checks are as strict as the Rust loader's: the tensors must cover the data
/// exactly, in order and without gaps. Beyond that loader's checks, names must be unique, and
/// fields that the format does not have are refused.
/// Source: https://github.com/huggingface/safetensors, safetensors/src/tensor.rs.
struct SafetensorsHeader {
  static constexpr int64_t kLengthBytes = 8;
  static constexpr int64_t kMaxJsonBytes = 100'000'000;  ///< the Rust loader's bound
  /// The data of a file begin at a multiple of this number of bytes. If the tensors with the widest
  /// dtypes come first, each tensor is then aligned to its elements.
  static constexpr int64_t kAlignment = 64;

  std::map<std::string, std::string> metadata;  ///< the header's field "__metadata__"
  std::vector<SafetensorsTensor> tensors;       ///< in the order of their data

  int64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }

  /// Returns the bytes before the file's data. InvalidArgument if the tensors are malformed or too
  /// many for one file.
  absl::StatusOr<std::string> to_bytes() const;

  /// Returns the length of the JSON, which the first 8 bytes of a file contain. InvalidArgument if
  /// it is above kMaxJsonBytes or too long for a file of `file_bytes` bytes, so that nothing is
  /// allocated.
  static absl::StatusOr<int64_t> json_bytes(std::string_view first_bytes, int64_t file_bytes);
  /// Parses the header `json` of a file with `data_bytes` after it. InvalidArgument says what is
  /// wrong: "got X, expected Y".
  static absl::StatusOr<SafetensorsHeader> from_json(std::string_view json, int64_t data_bytes);

 private:
  std::string problem() const;
};

}  // namespace tessera::internal
