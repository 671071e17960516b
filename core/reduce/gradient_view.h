#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// The gradient that users may see as `.grad` of one parameter.
struct GradientView {
  at::Tensor whole;  ///< the reduced gradient in the parameter's shape and dtype, or undefined
  /// Why `whole` is undefined, as the end of a sentence that begins "the gradient of X": "is
  /// sharded over ranks", ...
  std::string obstacle;
};

}  // namespace tessera::internal
