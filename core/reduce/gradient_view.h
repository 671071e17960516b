#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// The gradient that users may see as `.grad` of one parameter.
struct GradientView {
  at::Tensor whole;      ///< the reduced gradient in the parameter's shape and dtype, or undefined
  std::string obstacle;  ///< why `whole` is undefined: "is sharded over ranks", ... ("the gradient
                         ///< of X <obstacle>")
};

}  // namespace tessera::internal
