#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/nccl/communicator.h"
#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/comm/nccl/world.h"

namespace tessera::internal::nccl {

/// Memory of NCCL's allocator that the communicators of one group know; see NcclOptions::Memory.
///
/// Note [End of registered memory]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
/// ncclMemFree unmaps memory at once, even if queued work still uses it; LibTorch's allocator would
/// only reuse it for later work on the stream. So when the last tensor is dropped, a separate
/// thread waits until the streams that were current at the allocation and at the drop have run what
/// they held then, deregisters the memory from the communicators and frees it. No other thread
/// waits, because a communicator may be in an abort that hangs. A communicator that is destroyed
/// first deregisters the memory itself, which then lives on as ordinary memory.
class Memory {
 public:
  /// Neither communicator is registered with before allocate_*().
  Memory(std::shared_ptr<World> world, std::vector<std::shared_ptr<Communicator>> communicators);

  /// Local. An uninitialised 1-d tensor, registered for buffers. `pending` stands for the call.
  /// Throws c10::Error if there is no space.
  at::Tensor allocate_buffer(Pending& pending, int64_t numel, at::ScalarType dtype);

  /// Collective, blocks: milliseconds. In a window of `bytes` bytes on every rank, at least what
  /// `numel` elements take. c10::Error on every rank, which names the ranks, if one has no space or
  /// NCCL makes no window.
  at::Tensor allocate_window(Pending& pending, int rank, int64_t numel, at::ScalarType dtype,
                             int64_t bytes);

  /// Local. " at window 2 + 4096" where `tensor`, which peers reach, lies in one, for comparisons;
  /// "" if not. Of `other`, which they do not reach, it counts only whether it lies in one.
  std::string place_of(const at::Tensor& tensor, const at::Tensor& other);

 private:
  struct Block;
  struct Windows;

  std::shared_ptr<Block> take(int64_t bytes, std::string& problem);
  void enroll(Pending& pending, const Block& block, Communicator::Registration kind);
  at::Tensor tensor_of(std::shared_ptr<Block> block, int64_t numel, at::ScalarType dtype);

  const std::shared_ptr<World> world_;
  const std::vector<std::shared_ptr<Communicator>> communicators_;
  const std::shared_ptr<Windows> windows_;
};

}  // namespace tessera::internal::nccl
