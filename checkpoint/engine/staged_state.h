#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/memory_meter.h"
#include "tessera/state_stream.h"

namespace tessera::internal {

/// A copy of a rank's part of a run's state, to be written while training goes on. Reuses its
/// memory for the next copy. Used by one thread at a time.
class StagedState : public StateSink {
 public:
  /// `meter` counts the copy as MemoryClass::kHost, and must outlive this.
  explicit StagedState(MemoryMeter& meter) : meter_(meter) {}
  ~StagedState() override { release(); }
  StagedState(const StagedState&) = delete;
  StagedState& operator=(const StagedState&) = delete;

  void begin(const std::vector<StateOutline>& entries) override;
  void write(size_t entry, int64_t begin, const at::Tensor& values) override;

  /// Writes the copied pieces to `sink`, in the order in which they were copied.
  void replay(StateSink& sink) const;

  /// Frees the memory.
  void release();

 private:
  struct Piece {
    size_t entry = 0;
    int64_t begin = 0;
    at::Tensor values;  // a view of the buffer
  };

  MemoryMeter& meter_;
  std::vector<StateOutline> entries_;
  std::vector<Piece> pieces_;
  at::Tensor buffer_;  // of dtype kByte
  int64_t used_ = 0;   // bytes of buffer_ in use
};

}  // namespace tessera::internal
