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
  kDrop,    ///< the last samples are left out if they are fewer than the ranks (PyTorch's
            ///< drop_last=True)
  kUneven,  ///< the first ranks have one sample more than the others: for evaluation
};

/// How an epoch's samples are ordered and shared out. Equal on all ranks.
struct SamplerOptions {
  bool shuffle = true;  ///< true: an order drawn from seed and epoch; false: 0, 1, 2, ...
  int64_t seed = 0;
  Remainder remainder = Remainder::kPad;
};

/// Says which samples of a data set this rank takes. A sampler of LibTorch, for make_data_loader().
///
/// An epoch has one order for all ranks, which depends on size, seed and epoch only: the same on
/// every machine and for every number of ranks. Rank r takes the order's elements r, r + world, r +
/// 2 world and so on, as PyTorch's DistributedSampler does. So if each rank has consumed k samples,
/// the ranks together have consumed the first k * world samples of the order, whatever the batches
/// were.
///
/// A handle: copies, such as the one in a loader, share one state. A loader fetches batches ahead
/// of the loop, so the loop must report what it has consumed by calling advance() after each step.
/// state() counts consumed samples, not fetched ones. A state can be loaded into samplers for any
/// number of ranks, which continue with the next sample of the order.
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
/// A pass gives out the samples of the epoch that are not consumed yet. It begins with reset(),
/// which loaders call in their begin(). If advance() is never called, as in evaluation, each pass
/// has the whole epoch. All calls except check_ranks() are local and may come from any thread.
/// Misuse throws c10::Error.
class DistributedSampler final : public torch::data::samplers::Sampler<> {
 public:
  /// Makes the sampler of rank `rank` of `world` ranks for a data set of `size` samples.
  DistributedSampler(int64_t size, int world, int rank, const SamplerOptions& options = {});
  /// The same with rank and number of ranks from `group`, which is not kept.
  DistributedSampler(int64_t size, const ProcessGroup& group, const SamplerOptions& options = {});
  DistributedSampler(const DistributedSampler&) = default;  // moves use it, too
  DistributedSampler& operator=(const DistributedSampler&) = default;

  // --- Epochs ---

  int64_t epoch() const;
  /// Call it between passes only. If `epoch` differs from epoch(), the new epoch begins, with all
  /// its samples; otherwise nothing changes, so a loop over epochs can begin in the middle of one.
  void set_epoch(int64_t epoch);

  // --- Consumption ---

  /// Marks the oldest `batches` batches that next() gave out as consumed. Call it after each
  /// step(), on all ranks alike, with the number of that step's batches (one per micro-step), even
  /// if the step was skipped. A batch that is thrown away counts, too. Loaders must keep their
  /// order (DataLoaderOptions::enforce_ordering, the default).
  void advance(int64_t batches = 1);
  /// Like advance(), but counts samples of this rank; for loops over indices().
  void advance_samples(int64_t samples);

  SamplerState state() const;
  /// Call it between passes only. Throws c10::Error, with nothing changed, if `state` has another
  /// size, seed or kind of order.
  void load_state(const SamplerState& state);

  /// Returns true if next() has given out batches and advance() was never called. In that case
  /// state() counts none of their samples as consumed.
  bool is_never_advanced() const;

  /// Collective, blocking. Throws c10::Error on every rank of `group` unless this sampler has the
  /// same size, options and state on all of them; the error names a rank that differs. Batch sizes
  /// that differ between ranks lead to different states, so it detects them, too. Under kUneven it
  /// does not compare SamplerState::cursor, which may differ between ranks; Checkpoints saves rank
  /// 0's.
  void check_ranks(ProcessGroup& group) const;

  // --- Samples ---

  /// Returns the samples of this rank that are not consumed yet in this epoch, in order.
  std::vector<size_t> indices() const;

  /// Returns the number of samples in the data set.
  int64_t size() const;
  /// Returns the number of samples of this rank in a whole epoch. Under kPad and kDrop it is equal
  /// on all ranks.
  int64_t num_samples() const;
  /// Returns the number of samples of all ranks together in a whole epoch.
  int64_t total_size() const;

  // --- torch::data::samplers::Sampler ---

  /// Begins a pass. If all samples of the epoch are consumed, the first reset() after set_epoch()
  /// or load_state() begins an empty pass, and a later one throws. `new_size` sets the size of the
  /// data set; if that changes the size after samples of the epoch have been consumed, reset()
  /// throws.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// Returns the next samples of this pass, at most `batch_size`; nothing at its end.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  /// save() writes state() to an archive; load() reads a state from an archive and passes it to
  /// load_state().
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::shared_ptr<internal::SharedSampler> shared_;
};

}  // namespace tessera::data
