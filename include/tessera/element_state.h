#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace tessera {

/// One state of an optimizer with a value for each element that it updates: a moment, a momentum.
struct ElementState {
  std::string name;                                     ///< what a StateDict calls it: "exp_avg"
  std::optional<c10::ScalarType> dtype = std::nullopt;  ///< of its values; none: the masters'

  c10::ScalarType dtype_over(c10::ScalarType masters) const { return dtype.value_or(masters); }
};

/// A state that an optimizer keeps, and for which parameters: those whose group's algorithm and
/// options use it.
struct KeptState : ElementState {
  std::vector<uint8_t> parameters = {};  ///< by entry of the table, 1: it has it; empty: all do

  bool has(size_t parameter) const { return parameters.empty() || parameters[parameter] != 0; }
};

}  // namespace tessera
