#pragma once

#include <cstdint>

#include <torch/torch.h>

#include "tessera/distributed_sampler.h"
#include "tessera/examples/gpt/windows.h"

namespace gpt {

/// An endless stream of this rank's training batches. In each epoch every window is seen by one
/// rank once, in an order drawn anew; the last windows of an epoch that fill no whole batch are
/// skipped. A batch counts as consumed once it is given out, so save between steps. Local.
class Batches {
 public:
  /// `sequences` windows per batch, at most windows.size() / ranks.
  Batches(Windows windows, int64_t sequences, int rank, int ranks);

  Batch next();

  /// Number of times the text was begun anew.
  int64_t epoch() const { return sampler_.epoch(); }

  /// How far it is, to be saved and loaded.
  const tessera::data::DistributedSampler& sampler() const { return sampler_; }

 private:
  Windows windows_;
  size_t sequences_;
  tessera::data::DistributedSampler sampler_;
};

}  // namespace gpt
