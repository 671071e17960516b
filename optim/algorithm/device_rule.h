#pragma once

#include <cstring>
#include <type_traits>

#include <torch/optim/optimizer.h>

#include "tessera/optim/cuda/abi.h"

namespace tessera::internal {

/// Describes an algorithm to the GPU kernels.
struct DeviceRule {
  cuda::Rule rule;
  /// Writes the numbers that `options` have now into to.numbers.
  void (*write)(const torch::optim::OptimizerOptions& options, cuda::GroupNumbers& to);
};

/// Returns the DeviceRule for `rule`. kNumbersOf(options) returns the HyperParameters struct of the
/// rule's formula.
template <auto kNumbersOf>
DeviceRule device_rule(cuda::Rule rule) {
  return {.rule = rule,
          .write = [](const torch::optim::OptimizerOptions& options, cuda::GroupNumbers& to) {
            const auto numbers = kNumbersOf(options);
            static_assert(std::is_trivially_copyable_v<decltype(numbers)>);
            static_assert(sizeof(numbers) <= sizeof(to.numbers));
            std::memcpy(static_cast<void*>(to.numbers), &numbers, sizeof(numbers));
          }};
}

}  // namespace tessera::internal
