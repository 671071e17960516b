#pragma once

#include <cstring>
#include <type_traits>

#include <torch/optim/optimizer.h>

#include "tessera/optim/cuda/abi.h"

namespace tessera::internal {

/// An algorithm for the kernels of devices.
struct DeviceRule {
  cuda::Rule rule;
  /// Writes the options' present numbers into `to`.
  void (*write)(const torch::optim::OptimizerOptions& options, cuda::GroupNumbers& to);
};

/// The rule whose numbers kNumbersOf(options) returns: the HyperParameters of its formula.
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
