#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/core/layout/strides.h"

namespace tessera::internal {

/// A state of one parameter that the parameter's owner keeps whole. Unlike an ElementState it may
/// have any sizes.
struct WholeState {
  size_t number;     ///< index among the states that the algorithm may have
  std::string name;  ///< what a StateDict calls it
  std::vector<int64_t> sizes;
  std::optional<c10::ScalarType> dtype;  ///< nullopt: the masters' dtype

  c10::ScalarType dtype_over(c10::ScalarType masters) const { return dtype.value_or(masters); }
  int64_t numel() const {
    int64_t numel = 1;
    for (const int64_t size : sizes) numel *= size;
    return numel;
  }
  int64_t bytes(c10::ScalarType masters) const {
    return numel() * static_cast<int64_t>(c10::elementSize(dtype_over(masters)));
  }
  /// Returns the state's strides. A state with its parameter's sizes gets the parameter's memory
  /// order, as from zeros_like().
  std::vector<int64_t> strides(const at::Tensor& parameter) const {
    return parameter.sizes() == sizes ? flat_strides(parameter) : row_major_strides(sizes);
  }
  friend bool operator==(const WholeState&, const WholeState&) = default;
};

}  // namespace tessera::internal
