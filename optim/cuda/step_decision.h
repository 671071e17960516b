#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"
#include "tessera/core/numbers/exact_sum.h"
#include "tessera/optim/cuda/api.h"
#include "tessera/optim/cuda/uploads.h"
#include "tessera/options.h"

namespace tessera::internal::cuda {

/// Decides on the device whether a step applies, from the sums over all ranks (StepSums); the host
/// reads the decision later. Holds the dynamic loss scale, if there is one, on the device. Calls
/// except read() are queued on the device's current stream of the calling thread and return without
/// waiting for it. Used by one thread at a time. Equal inputs on all ranks give equal bits.
class StepDecision {
 public:
  /// Results of one step that are copied to the host.
  struct Reading {
    StepOutcome outcome;
    LossScaleState scale;  ///< after the step; {1, 0} without a LossScale
    /// Per parameter of the table: how many elements of its gradient are NaN or infinite, summed
    /// over all ranks.
    std::vector<int64_t> non_finite;
    std::vector<uint8_t> used;  ///< per parameter: 1 if any rank used it
    bool refused;               ///< true if any rank refused the step
    bool agreed;                ///< true if all ranks have the same hash
    ExactSum squares;           ///< sum of the gradient's squares over all ranks
  };
  /// How many readings may be under way at the same time.
  static constexpr size_t kReadings = 2;

  /// `parameters`: the number of parameters in the table. `max_norm` may be infinite. Throws
  /// c10::Error for a LossScale that LossScaler refuses.
  StepDecision(size_t parameters, double max_norm, std::optional<LossScale> loss_scale,
               std::shared_ptr<const Api> api, std::shared_ptr<Device> device);

  /// Decides from `words`, which are StepSums::words() summed over all `world_size` ranks, and
  /// updates the loss scale as LossScaler does. The loss scale stays if a rank refuses or ranks
  /// disagree. Gradients are divided by the loss scale and by `divisor`. Once per step.
  void decide(const at::Tensor& words, int world_size, double divisor = 1.0);

  /// Returns the address in device memory to which every decide() writes its result. It never
  /// changes. For GpuOptimizer::advance().
  const StepOutcome* outcome() const;

  /// Queues copies of the present result, loss scale and `words` to the host. May be called up to
  /// kReadings times before read(), so that step n + 1 may start its reading while the reading of
  /// step n is pending. Throws c10::Error if kReadings readings are pending.
  void start_reading(const at::Tensor& words);
  /// Returns the number of readings that are started and not read.
  size_t pending() const { return started_ - read_; }
  /// Blocks the host until the oldest pending reading has arrived, and returns it. Throws
  /// c10::Error if there is none.
  Reading read();

  /// Continues with another loss scale. Throws c10::Error like LossScaler::load, or if there is no
  /// LossScale.
  void load(LossScaleState state);
  /// Returns the loss scale, 0-d Double on the device. This is a view of the memory that decide()
  /// updates, so an operator reads the scale that is in force when the operator runs on the device.
  /// For a loss of fp32 write loss * scale().to(loss.scalar_type()), because the product of two 0-d
  /// tensors would be a Double. Throws c10::Error without a LossScale.
  at::Tensor scale() const;

 private:
  struct Readback {
    at::Tensor numbers;  // copy of StepDecision::numbers_
    at::Tensor words;
    std::shared_ptr<Event> is_there;
  };

  LossScaleState* state() const;
  void require_words(const at::Tensor& words) const;

  const std::shared_ptr<const Api> api_;
  const std::shared_ptr<Device> device_;
  const int64_t parameters_;
  const double max_norm_;
  const std::optional<LossScale> loss_scale_;
  at::Tensor numbers_;  // StepOutcome, then LossScaleState, in words of 8 bytes
  Uploads uploads_;
  std::array<Readback, kReadings> readbacks_;
  size_t started_ = 0;
  size_t read_ = 0;
};

}  // namespace tessera::internal::cuda
