#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace tessera::testing {

/// What a test sees and steers of the fake libtorch_cuda.so, which registers with LibTorch's CPU
/// half what the real one does: a device guard, hooks, at::empty and Tensor::copy_. Memory is the
/// host's, streams are threads (a handle is a HostStreamHandle*, as the fake NCCL takes it).
///
/// The process's environment says what machine it pretends to be, before it is loaded:
///   FAKE_CUDA_DEVICES  how many GPUs (3)
///   FAKE_CUDA_STATUS   what cudaGetDeviceCount returns (0)
///   FAKE_CUDA_STALLS   whether cudaGetDeviceCount never returns
///   FAKE_CUDA_DRIVER   the driver's CUDA, 0 for no driver (13000, as the runtime's)
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
};

}  // namespace tessera::testing

/// Looked up in the library that is loaded.
extern "C" tessera::testing::FakeCuda* tessera_fake_cuda();
