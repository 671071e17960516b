#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/core/comm/process_group.h"

namespace tessera {

/// Who meets whom, on which GPU.
struct CudaWorldOptions {
  int device_index = 0;
  std::string device_source;  ///< what gave the index, for messages: "LOCAL_RANK"
  int rank = 0;
  int size = 1;
  std::string job_token;
  c10::intrusive_ptr<c10d::Store> store;  ///< kept as long as the world; null for a world of one
  std::chrono::milliseconds timeout;
};

/// Collective over the ranks of a job: init_process_group() on GPUs. All ranks meet first, so that
/// what one of them lacks (LibTorch's CUDA half, a driver, its GPU, NCCL) is everyone's c10::Error
/// that names the ranks, and nobody waits for one that cannot come.
std::shared_ptr<ProcessGroup> make_cuda_world(const CudaWorldOptions& options);

}  // namespace tessera
