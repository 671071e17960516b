#include "tessera/distributed_sampler.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <string>

#include <ATen/core/ivalue.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/data/shuffle.h"
#include "tessera/process_group.h"

namespace tessera::internal {
namespace {

using data::Remainder;
using data::SamplerState;

int64_t checked_size(int64_t size) {
  TORCH_CHECK(size >= 1, "[sampler] size: got ", size,
              ", expected 1 or more samples; pass the size of the data set");
  TORCH_CHECK(size <= std::numeric_limits<int64_t>::max() / 2, "[sampler] size: got ", size,
              ", expected at most 2^62 samples, so that padding has a number");
  return size;
}

int64_t checked_world(int world) {
  TORCH_CHECK(world >= 1, "[sampler] world: got ", world, ", expected 1 or more ranks");
  return world;
}

int64_t checked_rank(int rank, int world) {
  TORCH_CHECK(rank >= 0 && rank < world, "[sampler] rank: got ", rank, ", expected 0 to ",
              world - 1, " in a world of ", world, "; the arguments are size, world, rank");
  return rank;
}

const char* name_of(Remainder remainder) {
  switch (remainder) {
    case Remainder::kPad:
      return "pad";
    case Remainder::kDrop:
      return "drop";
    case Remainder::kUneven:
      return "uneven";
  }
  TORCH_CHECK(false, "[sampler] remainder: got ", static_cast<int>(remainder),
              ", expected one of Remainder's values");
}

const char* order_of(bool shuffle) { return shuffle ? "shuffled" : "sequential"; }

}  // namespace

/// State that the copies of a DistributedSampler share. Functions have the contracts of
/// DistributedSampler's functions of the same names; any thread may call them.
class SharedSampler {
 public:
  SharedSampler(int64_t size, int world, int rank, const data::SamplerOptions& options)
      : world_(checked_world(world)),
        rank_(checked_rank(rank, world)),
        options_(options),
        size_(checked_size(size)) {
    name_of(options.remainder);
    begin_pass();
  }

  SharedSampler(const SharedSampler&) = delete;
  SharedSampler& operator=(const SharedSampler&) = delete;

  void set_epoch(int64_t epoch) {
    TORCH_CHECK(epoch >= 0, "[sampler] set_epoch: got ", epoch, ", expected 0 or more");
    const std::lock_guard lock(mutex_);
    may_pass_be_empty_ = true;
    if (epoch == epoch_) return;
    warn_of_forgotten_batches();
    epoch_ = epoch;
    cursor_ = 0;
    begin_pass();
  }

  void reset(std::optional<size_t> new_size) {
    const std::lock_guard lock(mutex_);
    if (new_size.has_value() && static_cast<int64_t>(*new_size) != size_) {
      const int64_t size = checked_size(static_cast<int64_t>(*new_size));
      TORCH_CHECK(
          cursor_ == 0, "[sampler] reset: got a new size ", size, " when ", cursor_, " of ", size_,
          " samples of epoch ", epoch_,
          " are consumed, expected it at the beginning of an epoch; call set_epoch() first");
      size_ = size;
      order_.clear();
    }
    TORCH_CHECK(!is_finished() || may_pass_be_empty_, "[sampler] reset: epoch ", epoch_,
                " is finished, expected another epoch before the next pass; call set_epoch(",
                epoch_ + 1, ")");
    may_pass_be_empty_ = false;
    begin_pass();
  }

  std::optional<std::vector<size_t>> next(size_t batch_size) {
    TORCH_CHECK(batch_size >= 1, "[sampler] next: got batch size 0, expected 1 or more");
    const std::lock_guard lock(mutex_);
    const int64_t left = count_ - given_;
    if (left == 0) return std::nullopt;
    const auto batch = static_cast<int64_t>(std::min(batch_size, static_cast<size_t>(left)));
    std::vector<size_t> samples;
    samples.reserve(static_cast<size_t>(batch));
    for (int64_t i = 0; i < batch; ++i) samples.push_back(sample(given_ + i));
    given_ += batch;
    has_given_ = true;
    batches_.push_back(batch);
    return samples;
  }

  bool is_never_advanced() const {
    const std::lock_guard lock(mutex_);
    return has_given_ && !has_advanced_;
  }

  std::vector<size_t> indices() const {
    const std::lock_guard lock(mutex_);
    std::vector<size_t> samples;
    samples.reserve(static_cast<size_t>(count_ - done_));
    for (int64_t i = done_; i < count_; ++i) samples.push_back(sample(i));
    return samples;
  }

  void advance(int64_t batches) {
    TORCH_CHECK(batches >= 1, "[sampler] advance: got ", batches, ", expected 1 or more batches");
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(batches <= static_cast<int64_t>(batches_.size()), "[sampler] advance: got ",
                batches, " batches, expected at most ", batches_.size(),
                ", which this pass has given out and not advanced over; call it once per step with "
                "the number of its batches");
    const auto end = batches_.begin() + batches;
    consume(std::accumulate(batches_.begin(), end, int64_t{0}));
    batches_.erase(batches_.begin(), end);
  }

  void advance_samples(int64_t samples) {
    TORCH_CHECK(samples >= 1, "[sampler] advance_samples: got ", samples,
                ", expected 1 or more samples");
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(batches_.empty(), "[sampler] advance_samples: got a call when ", batches_.size(),
                " batches of next() are not advanced over; call advance() for these");
    TORCH_CHECK(samples <= count_ - done_, "[sampler] advance_samples: got ", samples,
                ", expected at most ", count_ - done_, ", which are left in this epoch");
    consume(samples);
    given_ = done_;
  }

  SamplerState state() const {
    const std::lock_guard lock(mutex_);
    return current();
  }

  void load_state(const SamplerState& unchecked) {
    const SamplerState state = SamplerState::from_numbers(unchecked.numbers());
    const std::lock_guard lock(mutex_);
    const SamplerState mine = current();
    std::string problems;
    if (state.size != mine.size) {
      absl::StrAppend(&problems, " it has ", state.size, " samples, this data set ", mine.size,
                      ";");
    }
    if (state.seed != mine.seed) {
      absl::StrAppend(&problems, " its seed is ", state.seed, ", this one's ", mine.seed, ";");
    }
    if (state.shuffle != mine.shuffle) {
      absl::StrAppend(&problems, " its order is ", order_of(state.shuffle), ", this one's ",
                      order_of(mine.shuffle), ";");
    }
    TORCH_CHECK(problems.empty(),
                "[sampler] load_state: this is the state of another run:", problems,
                " make the sampler as it was, or begin anew without loading its state");
    epoch_ = state.epoch;
    cursor_ = state.cursor;
    may_pass_be_empty_ = true;
    begin_pass();
  }

  int64_t size() const {
    const std::lock_guard lock(mutex_);
    return size_;
  }

  int64_t num_samples() const {
    const std::lock_guard lock(mutex_);
    return samples_from(0);
  }

  int64_t total_size() const {
    const std::lock_guard lock(mutex_);
    return options_.remainder == Remainder::kUneven ? size_ : samples_from(0) * world_;
  }

  /// Returns one line for each thing that ranks must have in common.
  std::vector<std::string> lines(int group_rank, int group_size) const {
    const bool is_of_group = rank_ == group_rank && world_ == group_size;
    const SamplerState state = this->state();
    std::vector<std::string> lines = {
        is_of_group ? "the rank of the group" : absl::StrCat("rank ", rank_, " of ", world_),
        absl::StrCat("remainder ", name_of(options_.remainder))};
    for (const auto& [name, value] : state.numbers()) {
      if (name == "cursor" && options_.remainder == Remainder::kUneven) continue;
      lines.push_back(absl::StrCat(name, " ", value));
    }
    return lines;
  }

 private:
  // Call these with mutex_ held.

  /// Returns how many samples this rank has from place `begin` of the order to the epoch's end.
  int64_t samples_from(int64_t begin) const {
    const int64_t left = size_ - begin;
    switch (options_.remainder) {
      case Remainder::kPad:
        return (left + world_ - 1) / world_;
      case Remainder::kDrop:
        return left / world_;
      case Remainder::kUneven:
        return left > rank_ ? (left - rank_ + world_ - 1) / world_ : 0;
    }
    TORCH_INTERNAL_ASSERT(false);
  }

  bool is_finished() const { return cursor_ == size_; }

  void begin_pass() {
    begin_ = cursor_;
    count_ = samples_from(begin_);
    given_ = 0;
    done_ = 0;
    batches_.clear();
  }

  /// Warns if next() has given out all samples of the pass, and advance() was called for some of
  /// the batches but not for all. One batch may lack its advance(), because a loader with drop_last
  /// drops the last batch.
  void warn_of_forgotten_batches() const {
    if (done_ == 0 || given_ < count_ || batches_.size() <= 1) return;
    TORCH_WARN_ONCE("[sampler] epoch ", epoch_, " is left with ", batches_.size(),
                    " batches given out but not advanced over; a state saved in it may repeat "
                    "samples. Call advance() after each step with the number of its batches");
  }

  /// Returns this rank's sample number `place` of the pass, counted from 0. Under kPad, a place
  /// beyond the end of the epoch's order continues at the beginning of the order.
  size_t sample(int64_t place) const {
    const int64_t element = (begin_ + rank_ + place * world_) % size_;
    if (!options_.shuffle) return static_cast<size_t>(element);
    if (order_.empty() || order_epoch_ != epoch_) {
      order_ = shuffled(size_, options_.seed, epoch_);
      order_epoch_ = epoch_;
    }
    return static_cast<size_t>(order_[static_cast<size_t>(element)]);
  }

  void consume(int64_t samples) {
    has_advanced_ = true;
    done_ += samples;
    cursor_ = std::min(size_, begin_ + done_ * world_);
    if (done_ == count_ && options_.remainder == Remainder::kDrop) cursor_ = size_;
  }

  SamplerState current() const {
    return {.size = size_,
            .seed = options_.seed,
            .shuffle = options_.shuffle,
            .epoch = epoch_,
            .cursor = cursor_};
  }

  mutable std::mutex mutex_;
  const int64_t world_;
  const int64_t rank_;
  const data::SamplerOptions options_;
  int64_t size_;

  // How far all ranks have consumed samples: the epoch, and the place in its order.
  int64_t epoch_ = 0;
  int64_t cursor_ = 0;             // how many samples of the epoch's order are consumed or dropped
  bool may_pass_be_empty_ = true;  // reset() has begun no pass since set_epoch() or load_state()
  bool has_given_ = false;         // next() has ever given out a batch
  bool has_advanced_ = false;      // a sample was ever consumed

  // This rank's part of the pass, in samples.
  int64_t begin_ = 0;                 // cursor_ at the begin of the pass
  int64_t count_ = 0;                 // samples in the pass
  int64_t given_ = 0;                 // samples that next() has given out
  int64_t done_ = 0;                  // samples that have been consumed
  std::deque<int64_t> batches_ = {};  // sizes of batches given out and not consumed

  // The order of epoch order_epoch_; empty until a shuffled sample is needed.
  mutable std::vector<int64_t> order_ = {};
  mutable int64_t order_epoch_ = 0;
};

}  // namespace tessera::internal

namespace tessera::data {

DistributedSampler::DistributedSampler(int64_t size, int world, int rank,
                                       const SamplerOptions& options)
    : shared_(std::make_shared<internal::SharedSampler>(size, world, rank, options)) {}

DistributedSampler::DistributedSampler(int64_t size, const ProcessGroup& group,
                                       const SamplerOptions& options)
    : DistributedSampler(size, group.size(), group.rank(), options) {}

int64_t DistributedSampler::epoch() const { return state().epoch; }

void DistributedSampler::set_epoch(int64_t epoch) { shared_->set_epoch(epoch); }

void DistributedSampler::advance(int64_t batches) { shared_->advance(batches); }

void DistributedSampler::advance_samples(int64_t samples) { shared_->advance_samples(samples); }

SamplerState DistributedSampler::state() const { return shared_->state(); }

void DistributedSampler::load_state(const SamplerState& state) { shared_->load_state(state); }

bool DistributedSampler::is_never_advanced() const { return shared_->is_never_advanced(); }

void DistributedSampler::check_ranks(ProcessGroup& group) const {
  internal::require_equal(group, shared_->lines(group.rank(), group.size()), "sampler");
}

std::vector<size_t> DistributedSampler::indices() const { return shared_->indices(); }

int64_t DistributedSampler::size() const { return shared_->size(); }

int64_t DistributedSampler::num_samples() const { return shared_->num_samples(); }

int64_t DistributedSampler::total_size() const { return shared_->total_size(); }

void DistributedSampler::reset(std::optional<size_t> new_size) { shared_->reset(new_size); }

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  return shared_->next(batch_size);
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, number] : state().numbers()) archive.write(name, c10::IValue(number));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  std::map<std::string, int64_t> numbers;
  for (const auto& [name, number] : SamplerState().numbers()) {
    c10::IValue value;
    if (archive.try_read(name, value) && value.isInt()) numbers[name] = value.toInt();
  }
  load_state(SamplerState::from_numbers(numbers));
}

}  // namespace tessera::data
