#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "tessera/core/comm/meeting/place.h"
#include "tessera/core/comm/nccl/options.h"
#include "tessera/core/comm/process_group.h"
#include "tessera/core/device/device.h"

namespace tessera {

/// Which GPU is a rank's.
struct GpuChoice {
  std::optional<int> index;  ///< as the caller names it
  int local_rank = 0;        ///< gives it otherwise
  /// kShared: several ranks may have one, so local ranks are taken modulo the number of GPUs.
  enum class Use : uint8_t { kOwn, kShared } use = Use::kOwn;
};

/// Local. Loads LibTorch's CUDA half, and makes the GPU the calling thread's current device. Throws
/// c10::Error that lists what lacks.
std::shared_ptr<Device> take_gpu(const GpuChoice& choice);

/// Who meets whom, on which GPU.
struct CudaWorldOptions {
  GpuChoice gpu;
  /// A world of one needs no NCCL.
  enum class Backend : uint8_t { kNccl, kNcclForSeveral } backend = Backend::kNcclForSeveral;
  NcclOptions nccl;
  int rank = 0;
  int size = 1;
  std::string job_token;
  Place place;  ///< its store is kept as long as the world; none for a world of one
  std::chrono::milliseconds timeout;
};

/// Collective over the ranks of a job: init_process_group() on GPUs. All ranks meet first, so that
/// what one of them lacks (LibTorch's CUDA half, a driver, its GPU, NCCL) is everyone's c10::Error
/// that names the ranks, and nobody waits for one that cannot come. A world of one is a loopback on
/// its GPU, unless NCCL is asked for.
std::shared_ptr<ProcessGroup> make_cuda_world(const CudaWorldOptions& options);

}  // namespace tessera
