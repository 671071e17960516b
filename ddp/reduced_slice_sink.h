#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Follows what the reducer keeps for the step, so that it can be copied elsewhere while backward
/// goes on. Calls are local and may only queue work on the current stream and beside it.
class ReducedSliceSink {
 public:
  virtual ~ReducedSliceSink() = default;

  /// `value` [kept numel] is Reducer::value(unit) once the current stream has come this far.
  virtual void kept(size_t unit, const at::Tensor& value) = 0;
  /// What the current stream runs from now on writes that memory again.
  virtual void rewriting(size_t unit) = 0;
};

}  // namespace tessera
