#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace tessera {

/// The purposes of the engine's memory. Activations, and gradients in flight inside autograd, are
/// the user's and not counted.
enum class MemoryClass : uint8_t {
  kParameters,           ///< flat parameter buffers, or this rank's shards of them
  kGradients,            ///< reduced gradients that last until the step
  kOptimizer,            ///< moments, masters and averages
  kUnshardedParameters,  ///< memory of units while they are whole
  kRoot,                 ///< the root unit's own buffer, where parameters are split
  kGradientBuffers,      ///< buffers in which gradients are collected before they are reduced
  kControl,              ///< votes and other small buffers; copies for Options::buffers
  kHost,  ///< host memory: state that a GPU's engine keeps there (Options::offload), and the copy
          ///< that a checkpoint is written from (CheckpointsOptions::asynchronous)
};
inline constexpr size_t kMemoryClasses = 8;

std::string_view to_string(MemoryClass memory_class);

/// Bytes by class.
struct MemoryBytes {
  std::array<int64_t, kMemoryClasses> by_class{};
  int64_t& operator[](MemoryClass c) { return by_class[static_cast<size_t>(c)]; }
  int64_t operator[](MemoryClass c) const { return by_class[static_cast<size_t>(c)]; }
  /// Returns the sum over all classes; where a GPU trains, kHost is host memory and all other
  /// classes are GPU memory.
  int64_t total() const;
  friend bool operator==(const MemoryBytes&, const MemoryBytes&) = default;
};

/// Counts the bytes that this rank's engine holds, now and at peak. Thread-safe.
class MemoryMeter {
 public:
  void add(MemoryClass memory_class, int64_t bytes);
  void remove(MemoryClass memory_class, int64_t bytes);
  MemoryBytes now() const;
  /// Return the most bytes held at one time since the last reset_peak(): peak() for each class by
  /// itself, peak_total_bytes() for the sum over all classes.
  MemoryBytes peak() const;
  int64_t peak_total_bytes() const;
  void reset_peak();
  /// Returns how often add() was called. A step that allocates nothing does not change it.
  int64_t allocations() const;

 private:
  mutable std::mutex mutex_;
  MemoryBytes now_;
  MemoryBytes peak_;
  int64_t peak_total_bytes_ = 0;
  int64_t allocations_ = 0;
};

/// Returns this process's proportional set size in bytes (from /proc/self/smaps_rollup), in which
/// each shared page counts divided by the number of processes that share it; -1 if it is unknown.
int64_t process_pss_bytes();
/// Returns the part of process_pss_bytes() that is shared memory: on a CPU, the buffers that peers
/// read and write.
int64_t process_shared_bytes();

}  // namespace tessera
