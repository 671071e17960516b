#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace tessera {

/// One optimizer state that has a value for each element of a parameter, or for each block of
/// elements, such as a moment, or the scales of a moment's codes.
struct ElementState {
  std::string name;  ///< what a StateDict calls it: "exp_avg"
  /// Of its values; unset: the masters' dtype.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  /// How many elements share one value, counted from the parameter's start in memory order; the
  /// parameter's last block may be shorter. 1 or 64, so that no block straddles two slices (Note
  /// [Padding]).
  int64_t block_numel = 1;
  /// True if values are valid only in the parameter's own memory order. Codes are an example,
  /// because each block of them shares a scale.
  bool is_order_bound = false;

  c10::ScalarType dtype_over(c10::ScalarType masters) const { return dtype.value_or(masters); }
  /// Returns the number of values of `numel` elements that begin at the start of a block.
  int64_t values_of(int64_t numel) const { return (numel + block_numel - 1) / block_numel; }
};

/// A state that an optimizer keeps, and the parameters that have it, because the algorithm and
/// options of their group use it.
struct KeptState : ElementState {
  /// For each entry of the table 1 if the parameter has the state, else 0; empty: all have it.
  std::vector<uint8_t> parameters = {};

  bool has(size_t parameter) const { return parameters.empty() || parameters[parameter] != 0; }
};

}  // namespace tessera
