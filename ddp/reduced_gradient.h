#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/layout/flat_layout.h"
#include "tessera/core/memory/memory_meter.h"
#include "tessera/core/strategy.h"

namespace tessera {

/// The reduced gradient of one unit while it waits for the step: the sum over micro-steps of the
/// mean over ranks, in the unit's dtype. Which part of it this rank keeps, and where, follows from
/// the degrees:
///   g = o = 1 (ddp): the whole unit in a buffer of its own.
///   g = o = N (zero2): this rank's slice in a buffer of its own.
///   g = 1, o = N (zero1): this rank's slice, left inside the landing buffer where the reduction
///   put it; a buffer of its own is made when a second part has to be added.
class ReducedGradient {
 public:
  /// `group`, `layout` and `meter` must outlive it.
  ReducedGradient(ProcessGroup& group, const FlatLayout& layout, Degrees degrees,
                  MemoryMeter& meter);
  ~ReducedGradient();
  ReducedGradient(ReducedGradient&& other) noexcept;
  ReducedGradient(const ReducedGradient&) = delete;
  ReducedGradient& operator=(const ReducedGradient&) = delete;

  /// The part of the unit that this rank keeps.
  Range kept() const { return kept_; }

  /// Whether parts stay where the reduction left them as long as possible, so that the landing
  /// buffer must not be reused before vacate().
  bool stays_in_landing() const { return stays_in_landing_; }

  /// Starts the reduction of a full landing buffer [unit numel]; its kept range holds the mean when
  /// the Work is done. Collective.
  std::shared_ptr<Work> reduce(const at::Tensor& landing, std::string_view tag);

  /// Adds the kept range of a reduced landing buffer.
  void add(const at::Tensor& landing);

  /// Moves a value that lives in the landing buffer to a buffer of its own.
  void vacate();

  /// The value [kept().numel]. Undefined before the first add().
  const at::Tensor& value() const { return value_; }

  /// The buffer behind value() if it always is the same one (defined under ddp and zero2).
  const at::Tensor& own_buffer() const { return own_; }

  /// Makes [begin, begin + numel) of the unit zero where this rank keeps it.
  void drop(Range range);

  /// Forgets the value.
  void clear() { value_.reset(); }

 private:
  void make_own();

  ProcessGroup* group_;
  const FlatLayout* layout_;
  MemoryMeter* meter_;
  bool is_whole_;
  bool stays_in_landing_;
  Range kept_;
  at::Tensor own_;    // [kept numel]
  at::Tensor value_;  // own_, or a view of the landing buffer
};

}  // namespace tessera
