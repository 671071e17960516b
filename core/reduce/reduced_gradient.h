#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/reduce/gradient_communicator.h"
#include "tessera/core/reduce/tree_accumulator.h"
#include "tessera/memory_meter.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// The reduced gradient of one unit while it waits for the step: the sum over micro-steps of the
/// mean over ranks, in the unit's reduce dtype. In the end a rank has the gradient of its optimizer
/// slice. Until then the gradient's place follows from the degrees p | g | o of a world of N:
/// - o = 1 (ddp): the whole unit in a separate buffer.
/// - g = o (zero2, zero3, HSDP): the slice in a separate buffer.
/// - g = 1 < o (zero1): the slice, inside the gradient buffer, where the reduction left it. A
///   separate buffer is made when a second part has to be added, or at once if communication and
///   reduce dtype differ.
/// - 1 < g < o: the gradient slice in a separate buffer, summed over g ranks in each micro-step.
///   In the end the sums of the N / g groups of ranks are added once, and the mean is left in the
///   optimizer slice. Sums of g ranks are sent undivided, so fp16 overflows at 1/g of the usual
///   value.
///
/// Under Keep::kUntilUsed (g = o = N) the gradient stays inside the gradient buffer; keep() makes a
/// separate buffer if the gradient cannot be used at once. In a tree's order
/// (GradientCommunicator::order()) the sum over micro-steps continues the tree, and 1 < g < o is
/// treated like g = o. Partial sums other than the value have separate buffers; the value is
/// complete after a power of two micro-steps.
///
/// A micro-step calls reduce() on the gradient buffer and gather(), waits for both, then calls
/// add(). Every rank makes all three calls in the same order.
class ReducedGradient {
 public:
  /// How long a value is kept: until the step, or until it has been used, which happens before its
  /// gradient buffer is reused.
  enum class Keep : uint8_t { kUntilStep, kUntilUsed };

  /// `communicator`, `unit` and `meter` must outlive the object. Sums over ranks are divided by
  /// `divisor`, or by the number of ranks if it is 0. Local (allocates).
  ReducedGradient(GradientCommunicator& communicator, const PlannedUnit& unit,
                  const SliceMap& slices, double divisor, Keep keep, MemoryMeter& meter);
  ~ReducedGradient();
  ReducedGradient(ReducedGradient&& other) noexcept;
  ReducedGradient(const ReducedGradient&) = delete;
  ReducedGradient& operator=(const ReducedGradient&) = delete;

  /// Returns the part of the unit that this rank keeps in the end: its optimizer slice.
  Range kept() const { return kept_; }

  /// Returns a buffer for the first gradients of a micro-step if the reduction can leave the value
  /// there: [unit numel] of the communication dtype, contents undefined. If the buffer holds a
  /// value, moves that out first. Undefined if any buffer will do, i.e. except under zero1, and
  /// under ddp if communication and reduce dtype are equal and there is no value yet.
  at::Tensor gradient_buffer();
  /// Returns true if `gradients` came from gradient_buffer(), so that the caller must not reuse it.
  bool owns(const at::Tensor& gradients) const {
    return gradients.is_same(own_) || gradients.is_same(kept_buffer_);
  }

  /// Starts the reduction of a full gradient buffer [unit numel] of the communication dtype. The
  /// result goes to all of the buffer, this rank's atom or, if partial sums are kept, the gradient
  /// slice. Collective.
  std::shared_ptr<Work> reduce(const at::Tensor& gradients);

  /// Starts to complete the optimizer slice after reduce(), whose Work is `after` (null if the
  /// caller has waited for it). Returns null if the slice is complete already. Collective over the
  /// replicas.
  std::shared_ptr<Work> gather(const at::Tensor& gradients, std::shared_ptr<Work> after);

  /// Adds the result that reduce() and gather() left in the gradient buffer.
  void add(const at::Tensor& gradients);

  /// Moves the value out of the gradient buffer into a separate buffer, which is made when first
  /// needed.
  void keep();

  /// For partial sums only. Call these on every rank, in this order, and wait for each:
  /// reduce_sums() starts adding the other ranks' sums; gather_sums() starts completing the
  /// optimizer slice (null if it is complete); divide() makes the mean. Then value() is defined. A
  /// later add() continues with partial sums; the mean so far is kept, rounded once more unless the
  /// divisor is a power of two.
  std::shared_ptr<Work> reduce_sums();
  int64_t sum_bytes() const { return static_cast<int64_t>(own_.nbytes()); }  ///< that it reduces
  std::shared_ptr<Work> gather_sums();
  void divide();

  /// Returns the mean [kept().numel]; undefined if nothing has been added, or there are only
  /// partial sums.
  const at::Tensor& value() const { return value_; }

  /// Returns the buffer of value() if it is the whole unit and always the same buffer (ddp).
  const at::Tensor& whole() const;

  /// Sets this rank's part of [begin, begin + numel) of the unit to zero.
  void drop(Range range);

  /// Forgets the value.
  void clear();

  /// The host's state of the buffers.
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
  double divisor_;         // of a sum over ranks; 0: the number of ranks
  at::Tensor divides_by_;  // divisor_ as a 0-d tensor, made once so that steps allocate nothing
  bool is_whole_;
  bool keeps_sums_;
  bool adds_as_tree_;
  bool has_sums_ = false;      // own_ holds partial sums
  bool own_is_taken_ = false;  // holds the result of a reduction for add()
  Range atom_range_;
  Range kept_;
  Range own_range_;              // the range of the unit that own_ holds
  bool reduces_in_own_;          // the first reduction of a step uses own_, to avoid a copy
  at::Tensor kept_buffer_;       // [unit numel], communication dtype, if g = 1 < o
  at::Tensor own_;               // [own_range_ numel], reduce dtype
  TreeAccumulator accumulator_;  // adds micro-steps as a tree; value_ has the most terms
  at::Tensor value_;             // own_ or a part of it, or a view of the gradient buffer
};

}  // namespace tessera::internal
