#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Sees each unit's gradients of this rank before they are reduced, where they lie on a device and
/// landing does not look at them. Called on the thread that runs backward, inside gradient hooks.
class LandedUnitSink {
 public:
  virtual ~LandedUnitSink() = default;

  /// `landing` [unit numel], in the wire's dtype, holds all that this rank gives to the reduction
  /// of `unit`, zeros elsewhere, once the current stream has come this far. Valid during the call;
  /// what the call queues on the current stream reads it before the reduction does.
  virtual void landed(size_t unit, const at::Tensor& landing) = 0;
};

}  // namespace tessera
