#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"
#include "tessera/optim/cuda/abi.h"

namespace tessera::internal::cuda {

/// Lists of pieces in the device's memory, uploaded once.
class PieceTables {
 public:
  /// Queues one copy on the device's current stream. Local.
  PieceTables(Device& device, const std::vector<std::vector<Piece>>& lists);

  /// List number `list`: where it begins on the device, and its length.
  const Piece* pieces(size_t list) const;
  int64_t count(size_t list) const { return begins_[list + 1] - begins_[list]; }

  /// Memory on the device.
  int64_t bytes() const { return static_cast<int64_t>(on_device_.nbytes()); }

 private:
  std::vector<int64_t> begins_ = {0};
  at::Tensor on_host_;  // kept, because the copy may not have run
  at::Tensor on_device_;
};

}  // namespace tessera::internal::cuda
