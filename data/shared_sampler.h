#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/distributed_sampler.h"
#include "tessera/sampler_state.h"

namespace tessera::internal {

/// What the copies of a DistributedSampler share. Its calls have the contracts of those of the same
/// names; any thread may make them.
class SharedSampler {
 public:
  SharedSampler(int64_t size, int world, int rank, const data::SamplerOptions& options);
  SharedSampler(const SharedSampler&) = delete;
  SharedSampler& operator=(const SharedSampler&) = delete;

  void set_epoch(int64_t epoch);
  void advance(int64_t batches);
  void advance_samples(int64_t samples);
  data::SamplerState state() const;
  void load_state(const data::SamplerState& state);
  std::vector<size_t> indices() const;
  int64_t size() const;
  int64_t num_samples() const;
  int64_t total_size() const;
  void reset(std::optional<size_t> new_size);
  std::optional<std::vector<size_t>> next(size_t batch_size);
  bool is_never_advanced() const;

  /// One line for each thing that ranks must have in common.
  std::vector<std::string> lines(int group_rank, int group_size) const;

 private:
  // All of these with mutex_ held.
  int64_t samples_from(int64_t begin) const;
  bool is_finished() const { return cursor_ == size_; }
  void begin_pass();
  void warn_of_forgotten_batches() const;
  void consume(int64_t samples);
  size_t sample(int64_t place) const;
  data::SamplerState current() const;

  mutable std::mutex mutex_;
  const int64_t world_;
  const int64_t rank_;
  const data::SamplerOptions options_;
  int64_t size_;

  // What all ranks have consumed.
  int64_t epoch_ = 0;
  int64_t cursor_ = 0;             // how many samples of the epoch's order
  bool may_pass_be_empty_ = true;  // the epoch was named since the last pass began
  bool has_given_ = false;         // a batch, ever
  bool has_advanced_ = false;      // over a sample, ever

  // This rank's part of the pass, in samples.
  int64_t begin_ = 0;                 // cursor_ when it began
  int64_t count_ = 0;                 // there are
  int64_t given_ = 0;                 // of these next() has given out
  int64_t done_ = 0;                  // of these have been consumed
  std::deque<int64_t> batches_ = {};  // given out and not consumed

  mutable std::vector<int64_t> order_ = {};  // of epoch order_epoch_; empty until it is needed
  mutable int64_t order_epoch_ = 0;
};

}  // namespace tessera::internal
