#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "tessera/core/device/device.h"

namespace tessera::internal {

/// How the GPU of a rank is chosen.
struct GpuChoice {
  std::optional<int> index = {};  ///< the caller's choice
  /// The rank's number on its host, which gives the index if the caller chose none.
  int local_rank = 0;
  /// kOwn: each rank needs a GPU of its own. kShared: several ranks may share one, so local ranks
  /// are taken modulo the number of GPUs.
  enum class Use : uint8_t { kOwn, kShared } use = Use::kOwn;
};

/// Local. Loads LibTorch's CUDA half, and makes the GPU the calling thread's current device. Throws
/// c10::Error that lists what is missing.
std::shared_ptr<Device> take_gpu(const GpuChoice& choice);

}  // namespace tessera::internal
