#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// What Engine::step() does with the model's buffers: tensors that a module registers and does not
/// train, such as BatchNorm's running statistics. Each rank's forward writes them from its own
/// samples. parallelize() gives all ranks rank 0's buffers in any case. After that, a buffer in
/// memory that a process may only read (a program's constant, a file mapped read-only) must not
/// change on any rank. If it has changed and steps make buffers equal, step() throws on all ranks.
enum class BufferSync : uint8_t {
  kOnce,       ///< nothing: each rank keeps its own buffers
  kBroadcast,  ///< all ranks get rank 0's buffers (DistributedDataParallel's broadcast_buffers)
  kMean,       ///< floating and complex buffers become the mean over ranks; others
               ///< (num_batches_tracked), which have no mean, get rank 0's values
};

/// Returns "once", "broadcast" or "mean".
std::string_view to_string(BufferSync sync);

}  // namespace tessera
