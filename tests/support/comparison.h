#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

/// Describe differences, one line each with the worst element; empty if there are none.
/// bit_differences(): 0 and -0, or two NaNs, differ unless all their bits agree. differences(): two
/// elements a and b differ if |a - b| > tolerance * max(1, largest |b| of the tensor), or if one is
/// NaN.
std::string bit_differences(const std::map<std::string, at::Tensor>& got,
                            const std::map<std::string, at::Tensor>& expected);
std::string bit_differences(const std::vector<double>& got, const std::vector<double>& expected);
std::string bit_differences(const Outcome& got, const Outcome& expected);

std::string differences(const std::map<std::string, at::Tensor>& got,
                        const std::map<std::string, at::Tensor>& expected, double tolerance);
std::string differences(const Outcome& got, const Outcome& expected, double tolerance);

}  // namespace tessera::internal::testing
