#pragma once

#include <optional>
#include <string>

#include <c10/core/ScalarType.h>

namespace tessera {

/// One state of an optimizer with a value for each element that it updates: a moment, a momentum.
struct ElementState {
  std::string name;                                     ///< what a StateDict calls it: "exp_avg"
  std::optional<c10::ScalarType> dtype = std::nullopt;  ///< of its values; none: the masters'

  c10::ScalarType dtype_over(c10::ScalarType masters) const { return dtype.value_or(masters); }
};

}  // namespace tessera
