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

/// Whether a step is made, decided on the device from what the ranks have added up (StepSums) and
/// read by the host later. Holds the dynamic loss scale, if there is one, on the device. Calls but
/// read() are queued on the device's current stream of the calling thread and return without
/// waiting for it. Used by one thread at a time. Equal inputs on all ranks give equal bits.
class StepDecision {
 public:
  /// What the host learns of one step.
  struct Reading {
    StepOutcome outcome;
    LossScaleState scale;             ///< behind the step; {1, 0} without a LossScale
    std::vector<int64_t> non_finite;  ///< per parameter of the table: elements on all ranks
    std::vector<uint8_t> used;        ///< per parameter: 1 if any rank used it
    bool refused;                     ///< by any rank
    bool agreed;                      ///< all ranks have one hash
    ExactSum squares;                 ///< of all ranks
  };
  /// How many readings may be under way at once.
  static constexpr size_t kReadings = 2;

  /// `parameters`: how many the table has. `max_norm` may be infinite. Throws c10::Error for a
  /// LossScale that LossScaler refuses.
  StepDecision(size_t parameters, double max_norm, std::optional<LossScale> loss_scale,
               std::shared_ptr<const Api> api, std::shared_ptr<Device> device);

  /// Decides from `words`, StepSums::words() summed over the world's ranks, and moves the loss
  /// scale on: it grows or shrinks as LossScaler's, and stays where a rank refuses or ranks
  /// disagree. Gradients are divided by `divisor` beside the loss scale. Once per step.
  void decide(const at::Tensor& words, int world_size, double divisor = 1.0);

  /// The result of the last decide(), on the device, for DeviceOptimizer::advance(); the same
  /// address always.
  const StepOutcome* outcome() const;

  /// Queues copies of result, loss scale and `words` as they are then to the host. May be called
  /// up to kReadings times before read(), so step n + 1 may start its own while that of step n is
  /// unread; throws c10::Error beyond.
  void start_reading(const at::Tensor& words);
  /// How many readings are started and not read.
  size_t pending() const { return started_ - read_; }
  /// Blocks the host until the oldest reading that is started and not read is there, and returns
  /// it. Throws c10::Error if there is none.
  Reading read();

  /// Continues with another loss scale. Throws c10::Error as LossScaler::load, and without a
  /// LossScale.
  void load(LossScaleState state);
  /// What losses are multiplied with, 0-d Double on the device: a view, so it is that of the time
  /// at which what reads it runs. For a loss of fp32 write loss * scale().to(loss.scalar_type()):
  /// two 0-d tensors would make a Double. Throws c10::Error without a LossScale.
  at::Tensor scale() const;

 private:
  struct Readback {
    at::Tensor numbers;  // result and scale
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
  std::array<Readback, kReadings> gradient_buffers_;
  size_t started_ = 0;
  size_t read_ = 0;
};

}  // namespace tessera::internal::cuda
