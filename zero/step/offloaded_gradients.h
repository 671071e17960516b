#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/core/reduce/gradient_observer.h"
#include "tessera/core/reduce/reducer.h"
#include "tessera/core/step/gradient_norms.h"
#include "tessera/memory_meter.h"
#include "tessera/optim/cuda/api.h"
#include "tessera/optim/cuda/step_sums.h"
#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// This rank's reduced gradients in pinned host memory, from which the CPU updates. Each unit's
/// slice is copied on a separate stream when it is reduced, and again if something is added to it.
/// Where this rank keeps whole gradients, they are copied in step(), because until then the user
/// may write `.grad`. The host waits for a copy only when it reads the gradient. Non-finite
/// elements are counted on the device before the reduction, because afterwards one cannot tell
/// which rank produced them. Note [Offload] in offloaded_gradients.cc. Used by one thread at a
/// time.
class OffloadedGradients final : public GradientObserver {
 public:
  /// References must outlive it. Local (allocates).
  OffloadedGradients(const ParameterTable& table, const UnitPlan& plan, const SliceMap& slices,
                     std::shared_ptr<const cuda::Api> api, std::shared_ptr<Device> device,
                     MemoryMeter& meter);
  ~OffloadedGradients() override;

  void unreduced(size_t unit, const at::Tensor& buffer) override;
  void reduced(size_t unit, const at::Tensor& value) override;
  void rewriting(size_t unit) override;

  /// Queues the copies that are not under way yet. Call it once per step, before the calls below.
  void finish(const Reducer& reducer);

  /// Returns, per table entry, how many NaN or infinite elements this rank produced. Blocks until
  /// the counts have arrived.
  std::span<const int64_t> non_finite();
  /// Like Reducer::add_to(), but blocks until the gradients have arrived.
  void add_to(GradientNorms& norms);
  /// Returns the mean gradient of this rank's part of `unit` [kept numel] in the masters' dtype.
  /// Valid until the next call; the caller may write to it if nothing reads this unit's gradient
  /// again before drop().
  /// Blocks until the gradient has arrived. Throws c10::Error if there is none.
  at::Tensor gradient(size_t unit);

  /// drop() drops all gradients and counts; drop(parameter) only the count of that table entry.
  /// Queued.
  void drop();
  void drop(size_t parameter);

  /// Returns how many bytes of device memory this object takes.
  int64_t bytes() const { return sums_.bytes(); }

 private:
  void start(size_t unit, const at::Tensor& value);

  struct Slice {
    at::Tensor memory;  // [kept numel], reduce dtype, pinned
    std::shared_ptr<Event> reduced;
    std::shared_ptr<Event> arrived;
    bool is_under_way = false;  // a copy of the device's values to `memory` is queued or done
  };

  const at::Tensor& await(size_t unit);

  const UnitPlan& plan_;
  const SliceMap& slices_;
  MemoryMeter& meter_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Stream> stream_;
  const bool is_visible_;  // the user can see gradients as .grad
  cuda::StepSums sums_;
  std::vector<Slice> units_;  // trainable ones
  at::Tensor counts_;         // [table size] int64, pinned
  std::shared_ptr<Event> counted_;
  std::shared_ptr<Event> counts_arrived_;
  at::Tensor widened_;  // room to widen the largest slice reduced in 16 bits; undefined if none
  int64_t bytes_on_host_ = 0;
};

}  // namespace tessera::internal
