#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/engine.h"

namespace bench {

/// What checkpoints of an engine cost on this rank. All ranks measure the same at once.
class CheckpointTimes {
 public:
  /// `train` makes one step. References must outlive it.
  CheckpointTimes(tessera::Engine& engine, std::function<void()> train);

  /// Milliseconds of `what`, in a directory that all ranks see:
  ///
  ///   save   save_checkpoint() into a directory without this step
  ///   load   load_checkpoint() of what save has left there
  ///   stall  Checkpoints::save() in the background, up to where training may go on, after a step;
  ///          the second one, whose copy has its memory
  ///   copy   one memcpy of as many bytes as this rank saves, between buffers in use, after a step
  ///   write  as many bytes into a file of this rank, in blocks of 1 MiB, and an fsync
  ///
  /// Collective. Throws c10::Error for anything else.
  double measure(const std::string& what, const std::string& directory);

  /// What this rank saves of the state.
  int64_t bytes() const { return bytes_; }

 private:
  double copy() const;
  double write(const std::string& path) const;
  double stall(const std::string& directory);

  tessera::Engine& engine_;
  const std::function<void()> train_;
  int64_t bytes_ = 0;
};

}  // namespace bench
