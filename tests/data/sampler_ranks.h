#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/distributed_sampler.h"

namespace tessera::internal::testing {

using Samples = std::vector<size_t>;

/// The epoch's order, as a world of one has it.
inline Samples order_of(int64_t size, int64_t epoch, data::SamplerOptions options) {
  options.remainder = data::Remainder::kUneven;
  data::DistributedSampler sampler(size, /*world=*/1, /*rank=*/0, options);
  sampler.set_epoch(epoch);
  return sampler.indices();
}

inline Samples sorted(Samples samples) {
  std::sort(samples.begin(), samples.end());
  return samples;
}

/// All ranks of a job, each with a sampler and a loader that prefetches `ahead` batches.
class SamplerRanks {
 public:
  SamplerRanks(int64_t size, int world, const data::SamplerOptions& options, size_t batch_size,
               size_t ahead)
      : batch_size_(batch_size), ahead_(ahead), fetched_(world) {
    for (int rank = 0; rank < world; ++rank) samplers_.emplace_back(size, world, rank, options);
  }

  void begin(int64_t epoch) {
    for (size_t rank = 0; rank < samplers_.size(); ++rank) {
      samplers_[rank].set_epoch(epoch);
      samplers_[rank].reset();
      fetched_[rank].clear();
    }
  }

  /// One step of all ranks with up to `batches` batches each. Returns the used samples, rank by
  /// rank; empty at the end of the pass.
  Samples step(size_t batches = 1) {
    Samples used;
    for (size_t rank = 0; rank < samplers_.size(); ++rank) {
      std::deque<Samples>& fetched = fetched_[rank];
      int64_t taken = 0;
      for (size_t i = 0; i < batches; ++i) {
        while (fetched.size() < 1 + ahead_) {
          std::optional<Samples> batch = samplers_[rank].next(batch_size_);
          if (!batch.has_value()) break;
          fetched.push_back(std::move(*batch));
        }
        if (fetched.empty()) break;
        used.insert(used.end(), fetched.front().begin(), fetched.front().end());
        fetched.pop_front();
        ++taken;
      }
      if (taken > 0) samplers_[rank].advance(taken);
    }
    return used;
  }

  /// The run's state is rank 0's.
  data::SamplerState state() const { return samplers_[0].state(); }
  void load(const data::SamplerState& state) {
    for (data::DistributedSampler& sampler : samplers_) sampler.load_state(state);
  }
  bool is_equal_on_ranks() const {
    return std::all_of(samplers_.begin(), samplers_.end(),
                       [this](const auto& sampler) { return sampler.state() == state(); });
  }

 private:
  size_t batch_size_;
  size_t ahead_;
  std::vector<data::DistributedSampler> samplers_;
  std::vector<std::deque<Samples>> fetched_;
};

}  // namespace tessera::internal::testing
