#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/parameter_table.h"

namespace tessera::internal {

/// Gradients that did not come through autograd, by the parameters they are of.
struct GivenGradients {
  struct Placed {
    size_t parameter;  ///< index in the table
    at::Tensor gradient;
  };

  std::vector<Placed> placed;
  std::string problem;  ///< everything that is wrong with what was given, one a line; "" if nothing
};

/// Finds the parameters of `table` that `gradients` name, by any of their names. Undefined tensors
/// are left out, as what autograd::grad() returns for unused inputs. Wrong are unknown names,
/// frozen parameters, a second gradient of one parameter, other shapes, dtypes and devices than the
/// parameter's, and memory that cannot be read. Local.
GivenGradients given_gradients(const ParameterTable& table,
                               const std::vector<NamedTensor>& gradients);

}  // namespace tessera::internal
