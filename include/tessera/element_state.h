#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace tessera {

/// One state of an optimizer with a value for each element that it updates, or for each block of
/// elements: a moment, a momentum, the scales of its codes.
struct ElementState {
  std::string name;                                     ///< what a StateDict calls it: "exp_avg"
  std::optional<c10::ScalarType> dtype = std::nullopt;  ///< of its values; none: the masters'
  /// How many elements share one value, counted from the parameter's start in memory order; the
  /// parameter's last value may be of fewer. 1 or 64, so that no block straddles two slices (Note
  /// [Padding]).
  int64_t block_numel = 1;
  /// True if values are valid only in the parameter's own memory order. Codes are an example,
  /// because each block of them shares a scale.
  bool is_order_bound = false;

  c10::ScalarType dtype_over(c10::ScalarType masters) const { return dtype.value_or(masters); }
  /// Returns the number of values of `numel` elements that begin at the start of a block.
  int64_t values_of(int64_t numel) const { return (numel + block_numel - 1) / block_numel; }
};

/// A state that an optimizer keeps, and the parameters that have it: their group's algorithm and
/// options use it.
struct KeptState : ElementState {
  std::vector<uint8_t> parameters = {};  ///< by entry of the table, 1: it has it; empty: all do

  bool has(size_t parameter) const { return parameters.empty() || parameters[parameter] != 0; }
};

}  // namespace tessera
