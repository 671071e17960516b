#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/parameter_table.h"

namespace tessera::internal {

/// Gradients that did not come through autograd, with their parameters.
struct GivenGradients {
  struct Placed {
    size_t parameter;  ///< index in the table
    at::Tensor gradient;
  };

  std::vector<Placed> placed;
  std::string problem;  ///< all that is wrong, one line each; "" if nothing
};

/// Matches each of `gradients` with the parameter of `table` that has the gradient's name among its
/// names. Leaves out undefined tensors, which autograd::grad() returns for unused inputs. Sets
/// `problem` for unknown names, frozen parameters, a second gradient for the same parameter, a
/// shape, dtype or device other than the parameter's, memory that cannot be read, and (on the CPU)
/// indices of a sparse gradient beyond its shape. Local.
GivenGradients given_gradients(const ParameterTable& table,
                               const std::vector<NamedTensor>& gradients);

}  // namespace tessera::internal
