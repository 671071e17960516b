#pragma once

#include <cstdint>

namespace tessera {

/// How a world of backend nccl uses memory and copy engines. Equal on all ranks; they compare it
/// when they meet. What the library lacks for it is an error then.
struct NcclOptions {
  /// What ProcessGroup::allocate() gives.
  enum class Memory : uint8_t {
    /// LibTorch's caching allocator. NCCL copies through buffers of its own where it has to.
    kUsual,
    /// NCCL's allocator (ncclMemAlloc), registered with the communicators of the group that
    /// allocates (ncclCommRegister), which saves these copies where NVLink SHARP or the network's
    /// adapter can reach the memory. Beside LibTorch's allocator, so its statistics do not count
    /// it; each tensor takes at least 2 MiB.
    kRegistered,
    /// As kRegistered, in windows that lie alike on all ranks (ncclCommWindowRegister, symmetric):
    /// for NVLink's fast kernels, and for copy engines. Making one is collective, so until the
    /// group's first reduction or gather allocate() is: every rank calls it equally often, of any
    /// size; all take as much as the largest. From then on allocate() is local again and gives
    /// kUsual. The tensors of a collective lie in the same window at the same place on all ranks,
    /// or none of them does.
    kWindows,
  };
  Memory memory = Memory::kUsual;
  /// Copy engines run all-gathers, which leaves all SMs to the kernels beside them (NCCL's policy
  /// "zero CTA"). Needs kWindows, GPUs that NVLink connects, and a driver of 12.5 or newer; NCCL
  /// gathers with kernels where it finds that it cannot. Reductions are as ever.
  bool copy_engine = false;
};

}  // namespace tessera
