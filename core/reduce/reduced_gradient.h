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
/// slice. Until then the degrees g and o decide where the gradient lies (N is the number of ranks):
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
/// separate buffer if the gradient cannot be used at once. Under SumOrder::kBinaryTree
/// (GradientCommunicator::order()) the sum over micro-steps continues the tree, and 1 < g < o is
/// treated like g = o. The tree's partial sums other than the value have separate buffers; after 1,
/// 2, 4, 8, ... micro-steps the value is the whole sum.
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

  /// Returns a buffer for the first gradients of a micro-step, in which the reduction can leave the
  /// value: [unit numel] of the communication dtype, contents undefined. Under zero1 there is
  /// always such a buffer; if it holds a value, moves the value out first. Under ddp there is one
  /// while there is no value yet, provided that communication and reduce dtype are equal. In all
  /// other cases returns an undefined tensor; then any buffer will do.
  at::Tensor gradient_buffer();
  /// Returns true if `gradients` came from gradient_buffer(), so that the caller must not reuse it.
  bool owns(const at::Tensor& gradients) const {
    return gradients.is_same(own_) || gradients.is_same(kept_buffer_);
  }

  /// Starts the reduction of a full gradient buffer [unit numel] of the communication dtype. If
  /// partial sums are kept, the result goes to the gradient slice in that buffer; else, if o = 1,
  /// to the whole buffer; else to this rank's atom in it, or straight to the separate buffer if
  /// that saves a copy. Collective.
  std::shared_ptr<Work> reduce(const at::Tensor& gradients);

  /// Starts to complete the optimizer slice after reduce(), whose Work is `after` (null if the
  /// caller has waited for it). Returns null if the slice is complete already. Collective over the
  /// replicas.
  std::shared_ptr<Work> gather(const at::Tensor& gradients, std::shared_ptr<Work> after);

  /// Adds to the step's sum the result that reduce() and gather() left. The sum is value() unless
  /// partial sums are kept.
  void add(const at::Tensor& gradients);

  /// Moves the value out of the gradient buffer into a separate buffer, which is made when first
  /// needed.
  void keep();

  /// For partial sums only. Call these on every rank, in this order, and wait for each Work:
  /// reduce_sums() starts adding the other ranks' sums; gather_sums() starts completing the
  /// optimizer slice (null if it is complete); divide() turns the sum into the mean. Then value()
  /// is defined. A later add() goes on with partial sums, in which the mean so far is included;
  /// unless the divisor is a power of two, this rounds it once more.
  std::shared_ptr<Work> reduce_sums();
  /// Returns the number of bytes that reduce_sums() passes to its collective.
  int64_t sum_bytes() const { return static_cast<int64_t>(own_.nbytes()); }
  std::shared_ptr<Work> gather_sums();
  void divide();

  /// Returns the mean [kept().numel]; undefined if nothing has been added, or there are only
  /// partial sums.
  const at::Tensor& value() const { return value_; }

  /// Under ddp returns the buffer of the whole unit in which every value() lies; otherwise an
  /// undefined tensor.
  const at::Tensor& whole() const;

  /// Sets to zero what this rank has of the elements `range` of the unit.
  void drop(Range range);

  /// Forgets the value.
  void clear();

  /// Which buffer holds what, as the host knows it. Does not include the buffers' contents.
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
  double divisor_;         // a sum over ranks is divided by it; 0: by the number of ranks
  at::Tensor divides_by_;  // divisor_ as a 0-d tensor, made once so that steps allocate nothing
  bool is_whole_;
  bool keeps_sums_;
  bool adds_as_tree_;
  bool has_sums_ = false;      // own_ holds partial sums
  bool own_is_taken_ = false;  // a reduction into own_ has begun since clear()
  Range atom_range_;
  Range kept_;
  Range own_range_;              // the range of the unit that own_ holds
  bool reduces_in_own_;          // the first reduction of a step uses own_, to avoid a copy
  at::Tensor kept_buffer_;       // [unit numel], communication dtype, if g = 1 < o
  at::Tensor own_;               // [own_range_ numel], reduce dtype
  TreeAccumulator accumulator_;  // adds micro-steps as a tree; value_ is its largest sum
  at::Tensor value_;             // own_ or a part of it, or a view of the gradient buffer
};

}  // namespace tessera::internal
