#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// What Engine::step() does with the model's buffers: tensors that a module registers and does not
/// train, such as BatchNorm's running statistics. Each rank's forward computes their new values
/// from its own samples, so they may differ between ranks. Whatever this option says, parallelize()
/// gives all ranks rank 0's buffers. A buffer in memory that a process may only read (a program's
/// constant, a file mapped read-only) must keep its values on all ranks after parallelize(). If it
/// changes on any rank, step() throws on all ranks under kBroadcast and kMean.
enum class BufferSync : uint8_t {
  kOnce,       ///< nothing: each rank keeps its own buffers
  kBroadcast,  ///< all ranks get rank 0's buffers (DistributedDataParallel's broadcast_buffers)
  /// Floating and complex buffers become their mean over ranks; other buffers (num_batches_tracked)
  /// get rank 0's values, because they have no mean.
  kMean,
};

/// Returns "once", "broadcast" or "mean".
std::string_view to_string(BufferSync sync);

}  // namespace tessera
