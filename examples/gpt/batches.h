#pragma once

#include <cstdint>

#include <torch/torch.h>

#include "tessera/distributed_sampler.h"
#include "tessera/examples/gpt/windows.h"

namespace gpt {

/// An endless stream of this rank's training batches. Each epoch shuffles the windows again and
/// gives each window to one rank; windows at the end that do not fill a batch are skipped. A batch
/// counts as consumed when it is returned, so save sampler() between training steps. Local.
class Batches {
 public:
  /// `sequences` windows per batch, at most windows.size() / ranks.
  Batches(Windows windows, int64_t sequences, int rank, int ranks);

  Batch next();

  /// The number of completed passes over the text.
  int64_t epoch() const { return sampler_.epoch(); }

  /// The position in the stream, to be saved and loaded.
  const tessera::data::DistributedSampler& sampler() const { return sampler_; }

 private:
  Windows windows_;
  size_t sequences_;
  tessera::data::DistributedSampler sampler_;
};

}  // namespace gpt
