#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace tessera::internal {

/// The states, at one time, of the default generators that a function may draw from: the CPU's and
/// one GPU's.
class RandomState {
 public:
  /// Records the present states, which takes 5 KiB for the CPU's generator and 16 bytes for a
  /// GPU's. Local; never waits for the GPU.
  explicit RandomState(std::optional<c10::Device> gpu);

  /// Gives the recorded states back to the generators.
  void install() const;

  const std::optional<c10::Device>& gpu() const { return gpu_; }

 private:
  std::optional<c10::Device> gpu_;
  at::Tensor of_cpu_;
  at::Tensor of_gpu_;  // undefined without a GPU
};

}  // namespace tessera::internal
