#pragma once

#include <cstdint>

namespace tessera {

/// How a world of backend nccl uses memory and copy engines. Must be equal on all ranks, which
/// compare it in init_process_group(); an option that the NCCL library does not support is an error
/// there.
struct NcclOptions {
  /// The kind of memory that ProcessGroup::allocate() returns.
  enum class Memory : uint8_t {
    /// LibTorch's caching allocator. NCCL copies through buffers of its own where it has to.
    kDefault,
    /// NCCL's allocator (ncclMemAlloc), registered with the communicators of the group that
    /// allocates (ncclCommRegister), which avoids the copies of kDefault where NVLink SHARP or the
    /// network's adapter can reach the memory. LibTorch's allocator does not know this memory, so
    /// its statistics do not count it; each tensor takes at least 2 MiB.
    kRegistered,
    /// Like kRegistered, but in symmetric windows (ncclCommWindowRegister), for NVLink's fast
    /// kernels and for copy engines. Making a window is collective. So allocate() is collective
    /// until the group's first reduction or gather: every rank must call it equally often. The
    /// sizes of a call may differ between ranks; every rank then takes as much memory as the
    /// largest size. After that reduction or gather allocate() is local and returns memory as under
    /// kDefault. The tensors of a collective must lie in the same window at the same offset on all
    /// ranks, or in no window on any rank.
    kWindows,
  };
  Memory memory = Memory::kDefault;
  /// If true, copy engines run all-gathers, so that kernels that run at the same time have all SMs
  /// (NCCL's policy "zero CTA"). Needs kWindows, GPUs that NVLink connects, and a driver of 12.5 or
  /// newer; NCCL falls back to kernels where copy engines cannot be used. Reductions always use
  /// kernels.
  bool copy_engine = false;
};

}  // namespace tessera
