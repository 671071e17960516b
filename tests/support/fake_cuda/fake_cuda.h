#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace tessera::internal::testing {

/// The tests' view of the fake libtorch_cuda.so, and its controls. The library gives LibTorch's CPU
/// half GPUs, to run any program without one. It registers what the real one does (a device guard,
/// hooks, an allocator, kernels). Memory is the host's; streams are threads (a handle is a
/// HostStreamHandle*, as the fake NCCL takes it).
///
/// An operator waits until the calling thread's current stream is idle, then runs the CPU's kernel
/// on the same memory, in the call. So results have the CPU's bits, and data that is not ordered
/// with that stream may be read too early, as on a GPU. Only these are queued on a stream: copies
/// between tensors of a device; copies between a device and pinned memory, non_blocking; work that
/// other libraries queue. DeviceMemory says when freed memory is overwritten.
///
/// The environment describes the machine. It is read when the library is loaded:
///   FAKE_CUDA_DEVICES       number of GPUs (3; at most 16)
///   FAKE_CUDA_MEMORY_BYTES  of each (80 GiB)
///   FAKE_CUDA_DELAY_US      largest random delay of each piece of queued work (0)
///   FAKE_CUDA_DELAY_SEED    seed of the delays (1)
///   FAKE_CUDA_STATUS        what cudaGetDeviceCount returns (0)
///   FAKE_CUDA_STALLS        if set, cudaGetDeviceCount never returns
///   FAKE_CUDA_DRIVER        the driver's CUDA version, 0 for no driver (13000, as the runtime's)
class FakeCuda {
 public:
  virtual ~FakeCuda() = default;

  /// GPUs on which a context was made, by the rule of CUDA 12 and newer: making the device current
  /// makes one; restoring a device that has none does not.
  virtual std::set<int> contexts() = 0;
  virtual void forget_contexts() = 0;
  /// The calling thread's device.
  virtual int current_device() = 0;

  virtual int events_made() = 0;
  virtual int events_destroyed() = 0;
  virtual int events_with_timing() = 0;
  /// Whether each stream handed out from the pool has high priority.
  virtual std::vector<bool> stream_priorities() = 0;
  /// The handle of the calling thread's current stream of a device.
  virtual void* current_handle(int device) = 0;

  /// How often a host thread has waited for a device, or would have on a GPU: item(), copies
  /// between a device and the host that block or use unpinned memory, operators whose result size
  /// the host must know, synchronize() of an event, a stream or a device. For all devices, and for
  /// one.
  virtual int64_t host_syncs() = 0;
  virtual int64_t host_syncs(int device) = 0;
  /// Number of operators that ran, without views.
  virtual int64_t operators() = 0;
  virtual int64_t operators(int device) = 0;
  /// How often Tessera's kernels and NCCL have queued work on the device's streams.
  virtual int64_t launches(int device) = 0;
};

}  // namespace tessera::internal::testing

/// Looked up in the loaded library.
extern "C" tessera::internal::testing::FakeCuda* tessera_fake_cuda();
