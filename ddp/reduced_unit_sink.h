#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

#include "tessera/core/step/exact_sum.h"

namespace tessera {

/// Uses up the reduced gradient of a unit as soon as it is there, so that the reducer need not keep
/// it until the step. Called on the thread that runs backward, inside gradient hooks.
class ReducedUnitSink {
 public:
  virtual ~ReducedUnitSink() = default;

  /// Every parameter of `unit` has its gradient on this rank, which takes part in the reduction
  /// next: from now on another rank may have the sum.
  virtual void reducing(size_t unit) = 0;

  /// The mean gradient of what this rank keeps of `unit`, as Reducer::gradient() returns it, valid
  /// during the call, and its Reducer::squares(). Follows reducing() of the same unit.
  virtual void reduced(size_t unit, const at::Tensor& gradient, const ExactSum& squares) = 0;
};

}  // namespace tessera
