#pragma once

#include <cstdint>

#include <torch/torch.h>

#include "tessera/examples/gpt/windows.h"

namespace gpt {

/// An endless stream of this rank's training batches. In each epoch every window is seen by one
/// rank once, in an order drawn anew; the last windows of an epoch that fill no whole batch are
/// skipped. Local: ranks draw the same order from the epoch's number and take different parts of
/// it.
class Batches {
 public:
  /// `sequences` windows per batch, at most windows.size() / ranks.
  Batches(Windows windows, int64_t sequences, int rank, int ranks);

  Batch next();

  /// Number of times the text was begun anew.
  int64_t epoch() const { return static_cast<int64_t>(sampler_.epoch()); }

 private:
  Windows windows_;
  size_t sequences_;
  torch::data::samplers::DistributedRandomSampler sampler_;
};

}  // namespace gpt
