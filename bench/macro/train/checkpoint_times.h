#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/engine.h"

namespace bench {

/// The cost of an engine's checkpoints on this rank. All ranks measure the same at once.
class CheckpointTimes {
 public:
  /// `train` trains one step. `engine`, and all that `train` refers to, must outlive this object.
  CheckpointTimes(tessera::Engine& engine, std::function<void()> train);

  /// Returns how many milliseconds `what` takes, in a directory that all ranks see:
  ///
  ///   save   save_checkpoint() into a directory without this step
  ///   load   load_checkpoint() of the result of save
  ///   stall  Checkpoints::save() in the background after a step, until training may continue. The
  ///          second save is timed, which already has memory for its copy
  ///   copy   after a step, one memcpy of as many bytes as this rank saves, between buffers that
  ///          have been written before
  ///   write  writes as many bytes into a file of this rank, in blocks of 1 MiB, with an fsync
  ///
  /// Collective. Throws c10::Error for any other name.
  double measure(const std::string& what, const std::string& directory);

  /// The bytes of the state that this rank saves.
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
