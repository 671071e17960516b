#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

#include "tessera/core/numbers/exact_sum.h"

namespace tessera::internal {

/// Observes each unit's gradients in the reducer, before and after their reduction. Called on the
/// thread that runs backward, inside gradient hooks. Calls are local and, except consume(), may
/// only queue work, on the current stream or another one.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;

  /// Returns an observer that does nothing.
  static GradientObserver& none() {
    static GradientObserver none;
    return none;
  }

  /// Called before the reduction of `unit` is queued. When the current stream has run all work
  /// queued so far, `buffer` [unit numel], in the communication dtype, holds this rank's whole
  /// contribution to the reduction, with zeros where there is none. `buffer` is valid during the
  /// call; work that the call queues on the current stream reads it before the reduction does.
  virtual void unreduced(size_t /*unit*/, const at::Tensor& /*buffer*/) {}

  /// Called after the reduction of `unit` is queued. When the current stream has run all work
  /// queued so far, `value` [kept numel] is Reducer::value(unit), and stays so until rewriting().
  virtual void reduced(size_t /*unit*/, const at::Tensor& /*value*/) {}
  /// Called before work that overwrites the `value` passed to reduced() is queued on the current
  /// stream.
  virtual void rewriting(size_t /*unit*/) {}

  /// Returns true if consume() uses each reduced gradient at once, so that the reducer need not
  /// keep it until the step. The answer never changes. It may be true only if g = o = N.
  virtual bool consumes() const { return false; }
  /// Called if consumes(), when every parameter of `unit` has its gradient on this rank and before
  /// this rank takes part in the reduction. From then on another rank may have the sum.
  virtual void before_consuming(size_t /*unit*/) {}
  /// Takes the mean gradient of the part of `unit` that this rank keeps, as Reducer::gradient()
  /// returns it, valid during the call, and its Reducer::squares(). Called after before_consuming()
  /// for the same unit. If some of the unit's gradients did not arrive on this rank, neither
  /// function is called for the unit, and the reducer keeps the gradient.
  virtual void consume(size_t /*unit*/, const at::Tensor& /*gradient*/,
                       const ExactSum& /*squares*/) {}
};

}  // namespace tessera::internal
