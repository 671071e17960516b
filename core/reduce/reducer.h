#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/numbers/exact_sum.h"
#include "tessera/core/numbers/rolling_hash.h"
#include "tessera/core/reduce/backward_agreement.h"
#include "tessera/core/reduce/gradient_buffer.h"
#include "tessera/core/reduce/gradient_communicator.h"
#include "tessera/core/reduce/gradient_observer.h"
#include "tessera/core/reduce/gradient_view.h"
#include "tessera/core/reduce/reduced_gradient.h"
#include "tessera/core/reduce/reduction_order.h"
#include "tessera/core/reduce/registered_hook.h"
#include "tessera/core/sched/buffer_pool.h"
#include "tessera/core/sched/timed_work.h"
#include "tessera/core/step/gradient_norms.h"
#include "tessera/core/step/host_all_gather.h"
#include "tessera/memory_meter.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/unit_plan.h"

namespace tessera {
class Trace;
}  // namespace tessera

namespace tessera::internal {

/// Turns gradients from autograd into the reduced gradients that the step uses. Collects them in
/// full unit buffers of the communication dtype, reduces each unit when it is complete (in the same
/// ReductionOrder on all ranks), and adds the results of the backwards of one step in the reduce
/// dtype. For every value of Degrees; if g is 1 or o the bits are those of the rank-order sum,
/// whatever the degrees are. Note [Rounds], Note [Agreed order] and Note [Posted reductions] in
/// reducer.cc. Used by one thread.
///
/// Memory: for what is kept see ReducedGradient and memory_formula.h. Gradient buffers are pooled
/// by dtype, in a separate pool for units of kind kRoot, because each pool's buffers have the size
/// of its largest unit; under g = 1 < o each unit has its own. With an observer that consumes
/// reduced gradients, only gradients of units that lacked some are kept.
class Reducer {
 public:
  /// Whether a backward communicates, or only adds on this rank in the communication dtype
  /// (no_sync).
  enum class Mode : uint8_t { kReduce, kAddLocally };

  struct Setting {
    BufferPool::OnRelease on_release = BufferPool::OnRelease::kKeep;  ///< of gradient buffers
    /// The divisor of sums over ranks; 0: the number of ranks, so that they are means.
    double divisor = 0.0;
    /// May be null. If it consumes gradients, a step has one backward, of mode kReduce, with one
    /// gradient per parameter.
    GradientObserver* observer = nullptr;
    /// The order in which gradients of ranks are added.
    SumOrder order = SumOrder::kRanks;
    /// Holds the communication hook that may be registered; null: none may.
    const RegisteredHook* hook = nullptr;
    /// Whether ranks exchange at the end of each backward which parameters they used, or only in
    /// the step. In the step, used() is what this rank used, and a backward must give each
    /// parameter at most one gradient.
    enum class Agreement : uint8_t { kInBackward, kInStep } agreement = Agreement::kInBackward;
    /// If true, reductions follow the order of the first backward (ReductionOrder), else the plan's
    /// order. Under Agreement::kInStep they always follow the plan's.
    bool learns_order = true;
    /// Options::units_in_reduction. Not used on a device, see Reducer::units_in_reduction().
    int units_in_reduction = 1;
    /// Gets the time of communication; may be null.
    StepTimes* times = nullptr;
  };

  /// References, the observer, the hook, the times and `trace` (may be null) must outlive the
  /// reducer. Collective: makes subgroups of `group` where the degrees need them.
  Reducer(ProcessGroup& group, const ParameterTable& table, const UnitPlan& plan,
          const SliceMap& slices, const Setting& setting, MemoryMeter& meter, RollingHash& history,
          Trace* trace);
  ~Reducer();

  /// Called when a backward begins to deliver gradients, which are multiplied with `weight`. Local.
  void begin_micro_step(Mode mode, double weight = 1.0);

  /// Takes one gradient of parameter `index` of the table. Under kReduce it may start reductions,
  /// so it is collective in effect. Throws c10::Error if gradients are consumed and this is a
  /// parameter's second one in one backward.
  void receive(size_t index, const at::Tensor& gradient);

  /// Called when the backward is over. Under kReduce collective and blocking: contributes zeros for
  /// what this rank did not produce, agrees with all ranks on rounds and used parameters, and waits
  /// until all is reduced. Throws the same ErrorOnAllRanks on every rank if ranks differ in what
  /// they reduced or dropped since the last step; see ranks_differ(). Sends `report`. Returns
  /// whether any rank objects, the same on all; false if nothing is exchanged (kAddLocally,
  /// kInStep).
  bool end_micro_step(const BackwardAgreement::Report& report = {});
  /// has_exchanged(): true if the last end_micro_step() exchanged reports. agreement(): the reports
  /// of the last exchange.
  bool has_exchanged() const {
    return mode_ == Mode::kReduce && setting_.agreement == Setting::Agreement::kInBackward;
  }
  const BackwardAgreement& agreement() const { return agreement_; }

  /// The host's record after a micro-step with one gradient per parameter and everything reduced.
  struct Snapshot {
    std::vector<uint8_t> used;
    std::vector<ReducedGradient::State> reduced;  ///< per unit
  };
  Snapshot snapshot() const;
  /// Replaces begin_micro_step(), receive() and end_micro_step() in a world of one: a device
  /// replayed a captured micro-step that left the host's record as `after`, from the same state.
  /// Local.
  void repeat_micro_step(const Snapshot& after);

  /// Called by step() on every rank before squares() and the vote. Where partial sums are kept (1 <
  /// g < o), makes them means, once; elsewhere, or if there is nothing new, does nothing. Does
  /// nothing either if ranks made different numbers of micro-steps: the vote refuses their step.
  /// Traffic: S / g bytes per unit are reduce-scattered over N / g ranks and S / o gathered over N
  /// / o, plus one word per rank. Collective, blocking.
  void finish();

  /// Returns true if sums of kAddLocally wait to be reduced.
  bool has_local() const { return has_local_; }
  /// Returns true if end_micro_step() has thrown since the last clear(): ranks hold sums of
  /// different gradients, and some may have something to reduce that others have not. clear() on
  /// all ranks makes the reducer usable again.
  bool ranks_differ() const { return ranks_differ_; }

  /// Drops everything since the last step, or only what belongs to parameter `index`. Local.
  void clear();
  void drop(size_t index);

  /// Per table entry: 1 if any rank produced a gradient for it in a reduced micro-step since the
  /// last clear. Equal on all ranks.
  const std::vector<uint8_t>& used() const { return used_; }
  /// Per table entry: 1 if this rank holds a sum for it that is not reduced yet.
  const std::vector<uint8_t>& local() const { return local_; }
  /// Per table entry: NaN or infinite elements that this rank produced since the last clear,
  /// counted in the communication dtype, so that overflow in it counts.
  const std::vector<int64_t>& non_finite() const { return non_finite_; }

  /// Returns the part of `unit` whose gradient this rank has in the end: its optimizer slice.
  /// `unit` is below UnitPlan::trainable_size(), here and below.
  Range kept(size_t unit) const { return reduced_[unit].kept(); }

  /// Returns the mean gradient of what is kept of `unit` [kept numel] in the reduce dtype; see
  /// gradient().
  const at::Tensor& value(size_t unit) const { return reduced_[unit].value(); }

  /// Returns the mean gradient of what is kept of `unit` [kept numel] in the masters' dtype, for
  /// the optimizer; undefined before the first reduced micro-step (and before finish() where
  /// partial sums are kept). Valid until the next micro-step, clear() or drop(); a caller that
  /// calls clear() next may write to it. If the reduce dtype differs, it is converted into scratch
  /// memory, which is reused when nobody holds the tensor. A caller that takes one unit after the
  /// other needs memory for one, counted as gradient buffers.
  at::Tensor gradient(size_t unit);

  /// Adds this rank's part of the norms of gradient(): its own atom of every unit, without padding,
  /// so that the sum over ranks is the same under every strategy. Not what was consumed. Local.
  void add_to(GradientNorms& norms);
  /// This rank's part of the squared 2-norm of gradient(unit). Local.
  ExactSum squares(size_t unit);

  /// Returns the largest number of units whose gradients arrive or are under way at once; see
  /// memory_peak_formula.
  int units_in_reduction() const;

  /// Returns what users may see as `.grad`, per table entry.
  std::vector<GradientView> gradient_views() const;

 private:
  struct InFlight {
    size_t unit;
    size_t round;
    TimedWork work;    // of the present stage
    TimedWork gather;  // the second stage, where the first one starts it
    bool is_gathering = false;
    int64_t begin_ns;
    int64_t sent_bytes;
    int64_t worked_ns = 0;  // where posted: until it was last polled
  };
  enum class Wait : uint8_t { kNever, kOneCollective, kUntilDone };

  BufferPool& pool(size_t unit);
  GradientBuffer& open_buffer(size_t unit, size_t round);
  void await_buffer(size_t unit);
  void close_buffer(size_t unit, size_t round);
  void launch(size_t unit, size_t round);
  void note_sent(int64_t bytes) const;
  at::Tensor counted(size_t unit);
  void launch_complete_units();
  bool advance(InFlight& reduction, Wait wait);
  void retire(Wait wait);
  void retire_behind_last();
  void require_one_gradient(size_t index) const;
  int64_t control_bytes() const;

  ProcessGroup& group_;
  const ParameterTable& table_;
  const UnitPlan& plan_;
  const SliceMap& slices_;
  RollingHash& history_;
  MemoryMeter& meter_;
  Trace* const trace_;
  const Setting setting_;
  GradientObserver& observer_;  // of the setting, or one that does nothing
  const bool is_consumed_;      // by the observer
  const bool posts_;            // reductions are posted; see Note [Posted reductions]
  const size_t units_;          // trainable ones
  GradientCommunicator communicator_;
  BufferPool plain_pool_;
  BufferPool root_pool_;

  std::vector<ReducedGradient> reduced_;                                // per unit
  std::vector<std::vector<std::unique_ptr<GradientBuffer>>> arriving_;  // per unit and round
  std::map<at::ScalarType, at::Tensor> scratch_;                        // for gradient()
  std::deque<InFlight> in_flight_;                                      // in launch order

  Mode mode_ = Mode::kReduce;
  double weight_ = 1.0;  // of this micro-step
  bool has_local_ = false;
  bool ranks_differ_ = false;    // as agreed at the end of a micro-step
  bool is_announced_ = false;    // all ranks are known to reduce in this micro-step
  int64_t unfinished_ = 0;       // reduced micro-steps since finish() or clear()
  ReductionOrder order_;         // for round 0
  std::vector<size_t> firings_;  // per table entry, in this micro-step
  std::vector<size_t> rounds_;  // per unit, in this micro-step; the agreed maximum after exchange()
  std::vector<uint8_t> local_;  // per table entry
  std::vector<uint8_t> used_;   // per table entry
  std::vector<int64_t> non_finite_;  // per table entry
  BackwardAgreement agreement_;
  std::optional<HostAllGather> partial_sums_;  // where partial sums are kept
};

}  // namespace tessera::internal
