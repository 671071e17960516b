#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace tessera::internal::testing {

/// What a test sees and steers of the fake libtorch_cuda.so: GPUs for LibTorch's CPU half to run
/// any program on, without one. It registers what the real one does (a device guard, hooks, an
/// allocator, kernels). Memory is the host's; streams are threads (a handle is a HostStreamHandle*,
/// as the fake NCCL takes it).
///
/// An operator waits until the calling thread's current stream has run, then runs the CPU's kernel
/// on the same memory, in the call: what is not ordered with that stream may be read too early, as
/// on a GPU, and the bits are the CPU's. What is queued on a stream instead: copies between tensors
/// of a device; copies between a device and pinned memory, non_blocking; what others queue there.
/// See DeviceMemory for when freed memory is lost.
///
/// The process's environment says what machine it pretends to be, before it is loaded:
///   FAKE_CUDA_DEVICES       how many GPUs (3; at most 16)
///   FAKE_CUDA_MEMORY_BYTES  of each (80 GiB)
///   FAKE_CUDA_DELAY_US      each piece of queued work begins late by a random time up to this (0)
///   FAKE_CUDA_DELAY_SEED    of these times (1)
///   FAKE_CUDA_STATUS        what cudaGetDeviceCount returns (0)
///   FAKE_CUDA_STALLS        whether cudaGetDeviceCount never returns
///   FAKE_CUDA_DRIVER        the driver's CUDA, 0 for no driver (13000, as the runtime's)
class FakeCuda {
 public:
  virtual ~FakeCuda() = default;

  /// GPUs on which something has made a context, as CUDA 12 and newer do it: by making the device
  /// current, and not by restoring one that has none.
  virtual std::set<int> contexts() = 0;
  virtual void forget_contexts() = 0;
  /// The calling thread's.
  virtual int current_device() = 0;

  virtual int events_made() = 0;
  virtual int events_destroyed() = 0;
  virtual int events_with_timing() = 0;
  /// Of those handed out from the pool.
  virtual std::vector<bool> stream_priorities() = 0;
  /// Of the calling thread's current stream of a device.
  virtual void* current_handle(int device) = 0;

  /// How often a thread of the host has waited for a device, or would have on a GPU: item(), copies
  /// between a device and the host that are blocking or not pinned, operators whose result's size
  /// the host must know, synchronize() of an event, a stream or a device. On all devices, on one.
  virtual int64_t host_syncs() = 0;
  virtual int64_t host_syncs(int device) = 0;
  /// Operators that ran, views not among them.
  virtual int64_t operators() = 0;
  virtual int64_t operators(int device) = 0;
};

}  // namespace tessera::internal::testing

/// Looked up in the library that is loaded.
extern "C" tessera::internal::testing::FakeCuda* tessera_fake_cuda();
