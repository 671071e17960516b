#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

namespace tessera::internal {

/// The properties of an entry (StateEntry) that a checkpoint stores beside its values.
struct EntryForm {
  std::vector<int64_t> sizes;    ///< empty for a number
  std::vector<int64_t> strides;  ///< dense and without overlap; they give the order in memory
  at::ScalarType dtype = at::kFloat;

  /// numel(), element_bytes() and is_row_major() require that problem() is "".
  int64_t numel() const;
  int64_t element_bytes() const;
  /// Returns true if the elements lie in memory in their logical order, in which the last dimension
  /// runs fastest.
  bool is_row_major() const;

  /// Returns what is malformed, "got X, expected Y"; "" if nothing. Allows only dtypes that have a
  /// name in safetensors, and sizes whose number of bytes fits in 63 bits.
  std::string problem() const;

  bool operator==(const EntryForm&) const = default;
};

/// Returns the number of bytes in a tensor; nothing if a size is negative or the number overflows,
/// even if another size is 0.
std::optional<int64_t> bytes_of(const std::vector<int64_t>& sizes, at::ScalarType dtype);

/// Returns why `name` cannot be an entry's name, "got X, expected Y"; "" if it can. A name has 1 to
/// 1000 bytes of UTF-8 without control characters, and does not look like a piece_name().
std::string name_problem(std::string_view name);

/// Returns the name under which a file stores elements [begin, end) of the entry `name`:
/// "name#begin-end".
std::string piece_name(std::string_view name, int64_t begin, int64_t end);

}  // namespace tessera::internal
