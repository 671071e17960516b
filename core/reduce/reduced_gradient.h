#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/reduce/binary_counter.h"
#include "tessera/core/reduce/gradient_communicator.h"
#include "tessera/memory_meter.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// The reduced gradient of one unit while it waits for the step: the sum over micro-steps of the
/// mean over ranks, in the unit's reduce dtype. A rank ends with its optimizer slice. Where that
/// lives meanwhile follows from the degrees p | g | o of a world of N:
///   o = 1 (ddp): the whole unit in a buffer of its own.
///   g = o (zero2, zero3, HSDP): the slice in a buffer of its own.
///   g = 1 < o (zero1): the slice, left inside the gradient buffer where the reduction put it; a
///   buffer of its own is made when a second part has to be added. Where the communication dtype is
///   not the sums', it has that buffer from the start. 1 < g < o: the gradient slice in a buffer of
///   its own, summed over g ranks in each micro-step; finish() adds the sums of the N / g others
///   once and leaves the mean in the optimizer slice of it. Sums of g ranks travel undivided: fp16
///   overflows g times as early.
/// Under Keep::kUntilUsed (g = o = N) it is left inside the gradient buffer and has no other;
/// keep() makes one that lasts for the case that it cannot be used at once.
/// In a tree's order (GradientCommunicator::order()) the sum over micro-steps goes on with the tree
/// and 1 < g < o is as g = o. Partial sums beside the value have buffers of their own; the value is
/// complete after a power of two of micro-steps.
///
/// A micro-step calls reduce() on the gradient buffer and gather(), waits for both, then calls
/// add(); all three on every rank in the same order.
class ReducedGradient {
 public:
  /// How long a value is kept: until the step, or until it has been used, which is before its
  /// gradient buffer is reused.
  enum class Keep : uint8_t { kUntilStep, kUntilUsed };

  /// `communicator`, `unit` and `meter` must outlive it. Sums over ranks are divided by `divisor`;
  /// 0: by their number. Local (allocates).
  ReducedGradient(GradientCommunicator& communicator, const PlannedUnit& unit,
                  const SliceMap& slices, double divisor, Keep keep, MemoryMeter& meter);
  ~ReducedGradient();
  ReducedGradient(ReducedGradient&& other) noexcept;
  ReducedGradient(const ReducedGradient&) = delete;
  ReducedGradient& operator=(const ReducedGradient&) = delete;

  /// The part of the unit that this rank ends with: its optimizer slice.
  Range kept() const { return kept_; }

  /// Where the first gradients of a micro-step are collected if the reduction can leave the value
  /// there: [unit numel] of the communication dtype, contents undefined; a value that lies in it is
  /// moved first. Undefined where any buffer will do: all but zero1, and ddp with communication and
  /// sums of one dtype while there is no value.
  at::Tensor gradient_buffer();
  /// Whether `gradients` is what gradient_buffer() returned, and not the caller's to use again.
  bool owns(const at::Tensor& gradients) const {
    return gradients.is_same(own_) || gradients.is_same(kept_buffer_);
  }

  /// Starts the reduction of a full gradient buffer [unit numel] of the communication dtype: of all
  /// of it, this rank's atom or, where partial sums are kept, the gradient slice. Collective.
  std::shared_ptr<Work> reduce(const at::Tensor& gradients);

  /// Starts completing the optimizer slice after reduce(), whose Work `after` is unless it has been
  /// waited for (null); null if the slice is complete then. Collective over the replicas.
  std::shared_ptr<Work> gather(const at::Tensor& gradients, std::shared_ptr<Work> after);

  /// Adds what reduce() and gather() left in the gradient buffer.
  void add(const at::Tensor& gradients);

  /// Moves a value that lies in the gradient buffer to a buffer of its own, made when first needed.
  void keep();

  /// Partial sums only, each on every rank in this order and waited for: start adding the other
  /// ranks' sums; start completing the optimizer slice (null if it is complete); divide.
  /// value() is defined afterwards. A later add() takes partial sums up again; the mean so far is
  /// kept, rounded once more unless the divisor is a power of two.
  std::shared_ptr<Work> reduce_sums();
  int64_t sum_bytes() const { return static_cast<int64_t>(own_.nbytes()); }  ///< that it reduces
  std::shared_ptr<Work> gather_sums();
  void divide();

  /// The mean [kept().numel]; undefined while there is none (nothing added, or partial sums).
  const at::Tensor& value() const { return value_; }

  /// The buffer behind value() if that is the whole unit and always the same one (ddp).
  const at::Tensor& whole() const;

  /// Makes [begin, begin + numel) of the unit zero where this rank has it.
  void drop(Range range);

  /// Forgets the value.
  void clear();

  /// What the host knows of the buffers.
  struct State {
    at::Tensor value;
    bool own_is_taken;
    bool has_sums;
  };
  State state() const { return {value_, own_is_taken_, has_sums_}; }
  void restore(const State& state) {
    value_ = state.value;
    own_is_taken_ = state.own_is_taken;
    has_sums_ = state.has_sums;
  }

 private:
  void make_own();
  at::Tensor make_sum();
  void take_up_sums();
  at::Tensor of_own(Range range) const { return of(own_, own_range_, range); }
  static at::Tensor of(const at::Tensor& buffer, Range held, Range range) {
    return buffer.narrow(0, range.begin - held.begin, range.numel);
  }

  GradientCommunicator* communicator_;
  const PlannedUnit* unit_;
  MemoryMeter* meter_;
  double divisor_;         // of a reduction; 0: the number of ranks
  at::Tensor divides_by_;  // the same as a number; 0-d, made once so that steps allocate nothing
  bool is_whole_;
  bool keeps_sums_;
  bool adds_as_tree_;
  bool has_sums_ = false;      // own_ holds partial sums
  bool own_is_taken_ = false;  // by a reduction whose result add() will find there
  Range atom_range_;
  Range kept_;
  Range own_range_;         // what own_ holds
  bool reduces_in_own_;     // the first reduction of a step, so that nothing is copied
  at::Tensor kept_buffer_;  // [unit numel], communication dtype, where g = 1 < o
  at::Tensor own_;          // [own_range_ numel], reduce dtype
  BinaryCounter counter_;   // of micro-steps, where a tree adds them: value_ is its most
  at::Tensor value_;        // own_ or a part of it, or a view of the gradient buffer
};

}  // namespace tessera::internal
