#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace tessera {

/// One of an optimizer's states that has a value per element of a parameter (a moment, say) or per
/// block of elements (the scales of a moment's codes, say).
struct ElementState {
  std::string name;  ///< what a StateDict calls it: "exp_avg"
  /// The dtype of the values; unset: the masters' dtype.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  /// The length of a block: how many elements, consecutive in memory, share one value. The first
  /// block begins at the parameter's start, and the last one may be shorter. 1 or 64, so that no
  /// block straddles two slices (Note [Padding]).
  int64_t block_numel = 1;
  /// True if values are valid only in the parameter's own memory order. Codes are an example,
  /// because each block of them shares a scale.
  bool is_order_bound = false;

  c10::ScalarType dtype_over(c10::ScalarType masters) const { return dtype.value_or(masters); }
  /// Returns how many values of this state belong to `numel` consecutive elements, the first of
  /// which must begin a block.
  int64_t values_of(int64_t numel) const { return (numel + block_numel - 1) / block_numel; }
};

/// An ElementState, and the parameters that have it: those of the groups whose algorithm and
/// options use it.
struct KeptState : ElementState {
  /// For each parameter of the ParameterTable, 1 if it has the state, else 0; empty: all have it.
  std::vector<uint8_t> parameters = {};

  bool has(size_t parameter) const { return parameters.empty() || parameters[parameter] != 0; }
};

}  // namespace tessera
