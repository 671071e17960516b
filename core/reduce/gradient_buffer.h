#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Collects one unit's gradients between autograd and the reduction, in a flat buffer for the full
/// unit, laid out like its parameters, in the communication dtype. Knows which parameters'
/// gradients have arrived. Used by one thread.
class GradientBuffer {
 public:
  /// For gradients of `unit`, whose parameters are in `table`; both must outlive the object.
  GradientBuffer(const ParameterTable& table, const PlannedUnit& unit);

  /// Returns true if it holds a buffer.
  bool is_open() const { return buffer_.defined(); }

  /// Takes `buffer` [unit numel] of the communication dtype, contents undefined. All gradients
  /// count as missing until they arrive.
  void open(at::Tensor buffer);

  /// Returns the buffer, which this object then no longer holds, and forgets which gradients have
  /// arrived.
  at::Tensor close();

  /// Forgets which gradients have arrived in this micro-step but keeps their values; later
  /// gradients are added to them.
  void begin_micro_step();

  /// Multiplies `gradient` with `weight` and copies it to the place of the unit's parameter
  /// `position`, or adds it to a gradient that is there, rounding once to the buffer's dtype.
  /// Weight 0 gives zeros, also for non-finite gradients. Dense or sparse; any strides. Returns how
  /// many elements of the place are NaN or infinite afterwards; a finite value that the buffer's
  /// dtype cannot hold has become infinite, and counts. If the buffer is not on the CPU, queues the
  /// copy and returns 0; there an observer counts such elements (GradientObserver::unreduced()).
  int64_t receive(size_t position, const at::Tensor& gradient, double weight = 1.0);

  /// Returns true if the gradients of all parameters of the unit have arrived since
  /// begin_micro_step() or open().
  bool is_complete() const { return received_now_ == unit_.parameters.size(); }

  /// Writes zeros where no gradient has arrived, and to the padding, so that the whole buffer may
  /// be reduced.
  void fill_missing();

  /// Sets the gradient of parameter `position` to zero and forgets that it has arrived.
  void drop(size_t position);

  const at::Tensor& buffer() const { return buffer_; }

 private:
  enum class State : uint8_t { kUndefined, kOld, kNow };

  const ParameterTable& table_;
  const PlannedUnit& unit_;
  at::Tensor buffer_;         // [unit numel]
  std::vector<State> state_;  // per position
  size_t received_now_ = 0;
  bool is_filled_ = false;  // padding and places without gradients hold zeros
};

}  // namespace tessera::internal
