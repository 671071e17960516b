#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/data/samplers/base.h>

#include "tessera/sampler_state.h"

namespace tessera {
class ProcessGroup;

namespace internal {
class SharedSampler;
}  // namespace internal
}  // namespace tessera

namespace tessera::data {

/// How an epoch's last samples are treated if they do not divide evenly over the ranks.
enum class Remainder : uint8_t {
  kPad,     ///< the order is padded with its first samples (PyTorch's drop_last=False)
  kDrop,    ///< they are left out (PyTorch's drop_last=True)
  kUneven,  ///< the first ranks have one sample more than the others: for evaluation
};

/// How an epoch's samples are ordered and shared out. Equal on all ranks.
struct SamplerOptions {
  bool shuffle = true;  ///< by seed and epoch; false: 0, 1, 2, ...
  int64_t seed = 0;
  Remainder remainder = Remainder::kPad;
};

/// Says which samples of a data set this rank takes. A sampler of LibTorch, for make_data_loader().
///
/// An epoch has one order for all ranks, which depends on size, seed and epoch only: the same on
/// every machine and for every number of ranks. Rank r takes its elements r, r + world, r + 2 world
/// and so on, as PyTorch's DistributedSampler does. So if each rank has consumed k samples, all
/// together have consumed the first k * world of the order, whatever the batches were.
///
/// A handle: copies, such as the one in a loader, share one state. A loader fetches batches ahead
/// of the loop, so the loop says what it has consumed: advance() after each step. state() counts
/// what was consumed, not what was fetched; loaded into samplers of any number of ranks it goes on
/// with the next sample of the order.
///
///     tessera::data::DistributedSampler sampler(*data.size(), *world);
///     auto loader = torch::data::make_data_loader(data, sampler, /*batch_size=*/64);
///     for (int64_t epoch = sampler.epoch(); epoch < epochs; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (auto& batch : *loader) {
///         loss(batch).backward();
///         engine->step();
///         sampler.advance();
///       }
///     }
///
/// reset(), which loaders call in begin(), begins a pass over the samples of the epoch that are not
/// consumed. If advance() is never called, as in evaluation, each pass has the whole epoch. All
/// calls are local and may come from any thread, check_ranks() excepted. Misuse throws c10::Error.
class DistributedSampler final : public torch::data::samplers::Sampler<> {
 public:
  /// `size` samples, this being rank `rank` of `world`.
  DistributedSampler(int64_t size, int world, int rank, const SamplerOptions& options = {});
  /// The rank and world of `group`, which is not kept.
  DistributedSampler(int64_t size, const ProcessGroup& group, const SamplerOptions& options = {});
  DistributedSampler(const DistributedSampler&) = default;  // moving copies, too
  DistributedSampler& operator=(const DistributedSampler&) = default;

  // --- Epochs ---

  int64_t epoch() const;
  /// Between passes. If `epoch` differs from epoch(), the new epoch begins, with all its samples;
  /// otherwise nothing changes, so a loop over epochs can begin in the middle of one.
  void set_epoch(int64_t epoch);

  // --- Consumption ---

  /// Marks the oldest `batches` batches that next() gave out as consumed. Call it after each
  /// step(), on all ranks alike, with the number of that step's batches (one per micro-step), even
  /// if the step was skipped. A batch that is thrown away counts, too. Loaders must keep their
  /// order (DataLoaderOptions::enforce_ordering, the default).
  void advance(int64_t batches = 1);
  /// The same in samples of this rank, for loops over indices().
  void advance_samples(int64_t samples);

  SamplerState state() const;
  /// Between passes. Throws c10::Error, with nothing changed, for the state of another size, seed
  /// or kind of order.
  void load_state(const SamplerState& state);

  /// True if next() has given out batches and advance() was never called: then state() is still
  /// where it began.
  bool is_never_advanced() const;

  /// Collective, blocking. Throws c10::Error on every rank of `group`, naming one that differs,
  /// unless all have this sampler with the same size, options and state: it finds batch sizes that
  /// differ between ranks. Under kUneven cursors may differ, and rank 0's counts.
  void check_ranks(ProcessGroup& group) const;

  // --- Samples ---

  /// Returns the samples of this rank that are not consumed yet in this epoch, in order.
  std::vector<size_t> indices() const;

  /// Samples in the data set.
  int64_t size() const;
  /// Samples of this rank in a whole epoch. Under kPad and kDrop equal on all ranks.
  int64_t num_samples() const;
  /// Samples of all ranks in a whole epoch.
  int64_t total_size() const;

  // --- torch::data::samplers::Sampler ---

  /// Begins a pass. A finished epoch has no samples left: an empty pass right after set_epoch() or
  /// load_state(), an error otherwise. A `new_size` of the data set is taken only at the beginning
  /// of an epoch.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// Returns the next samples of this pass, at most `batch_size`; nothing at its end.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  /// state() and load_state() through an archive.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::shared_ptr<internal::SharedSampler> shared_;
};

}  // namespace tessera::data
