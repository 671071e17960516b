#pragma once

#include <memory>
#include <string_view>

#include "tessera/core/device/gpu_choice.h"
#include "tessera/environment.h"
#include "tessera/process_group.h"
#include "tessera/process_group_options.h"

namespace tessera::internal {

/// One way for the ranks of a job to communicate.
struct Backend {
  std::string_view name;
  bool is_for_host;     ///< takes tensors on the CPU
  bool is_for_devices;  ///< takes tensors on GPUs
  /// Collective over the ranks of the job: init_process_group() of options that were checked.
  std::shared_ptr<ProcessGroup> (*make)(ProcessGroupOptions options,
                                        const Environment& environment);
};

/// All backends, for messages.
inline constexpr const char* kBackendNames =
    "'auto', 'loopback' (one rank), 'mpi' (CPUs of any hosts, under mpirun or srun), 'hosts' (mpi, "
    "and shared memory inside each host), 'shm' (ranks of one host) or 'nccl' (GPUs)";

/// The one called `name`; null if there is none.
const Backend* find_backend(std::string_view name);

/// What "auto" stands for among `ranks` ranks with tensors on `device`.
const Backend& default_backend(at::Device device, int ranks);

/// Local. Which GPU is this rank's.
GpuChoice gpu_of(const ProcessGroupOptions& options, const Environment& environment,
                 GpuChoice::Use use);

}  // namespace tessera::internal
