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

/// Turns autograd's gradients into the reduced gradients that the step uses. Collects them in full
/// unit buffers of the communication dtype, reduces each unit when it is complete (in the same
/// ReductionOrder on all ranks), and adds the results of the backwards of one step in the reduce
/// dtype. Supports every value of Degrees. With g = 1 and with g = o the results have the same
/// bits, those of a sum in rank order. Note [Rounds], Note [Agreed order] and Note [Posted
/// reductions] in reducer.cc. Used by one thread.
///
/// Memory: ReducedGradient and memory_formula.h describe what is kept. Gradient buffers are pooled
/// by dtype. All buffers of a pool have the size of its largest unit, so units of kind kRoot, which
/// may be large, have a pool of their own. Under g = 1 < o each unit has its own buffer. With an
/// observer that consumes reduced gradients, a unit's reduced gradient is kept only if some of the
/// unit's gradients did not arrive on this rank.
class Reducer {
 public:
  /// Whether a backward communicates, or only adds on this rank in the communication dtype
  /// (no_sync).
  enum class Mode : uint8_t { kReduce, kAddLocally };

  struct Setting {
    /// What happens to the contents of a gradient buffer that is released.
    BufferPool::OnRelease on_release = BufferPool::OnRelease::kKeep;
    /// The divisor of sums over ranks; 0: the number of ranks, which gives means.
    double divisor = 0.0;
    /// Null if there is no observer. With an observer that consumes gradients, a step has one
    /// backward, of mode kReduce, with one gradient per parameter.
    GradientObserver* observer = nullptr;
    /// The order in which ranks' gradients are added.
    SumOrder order = SumOrder::kRanks;
    /// Holds the communication hook once one is registered. Null: no hook can be registered.
    const RegisteredHook* hook = nullptr;
    /// When ranks tell each other which parameters they used: at the end of each backward, or only
    /// in the step. Under kInStep, used() returns the parameters that this rank used, and a
    /// backward must give each parameter at most one gradient.
    enum class Agreement : uint8_t { kInBackward, kInStep } agreement = Agreement::kInBackward;
    /// If true, reductions follow the order of the first backward (ReductionOrder), else the plan's
    /// order. Under Agreement::kInStep they always follow the plan's.
    bool learns_order = true;
    /// Options::units_in_reduction.
    int units_in_reduction = 1;
    /// Records the time of communication; may be null.
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
  /// which are collective. Throws c10::Error if gradients are consumed and this is the parameter's
  /// second one in a backward.
  void receive(size_t index, const at::Tensor& gradient);

  /// Called when the backward has ended. Under kReduce collective and blocking: contributes zeros
  /// for gradients that this rank did not produce, agrees with all ranks on rounds and used
  /// parameters, and waits until everything is reduced. Throws the same ErrorOnAllRanks on every
  /// rank if ranks differ in what they reduced or dropped since the last step; see ranks_differ().
  /// Sends `report`. Returns true, on all ranks, if Report::objects is set on any rank; false if
  /// nothing is exchanged (kAddLocally, kInStep).
  bool end_micro_step(const BackwardAgreement::Report& report = {});
  /// has_exchanged() returns true if the last end_micro_step() exchanged reports; agreement()
  /// returns the reports of the last exchange.
  bool has_exchanged() const {
    return mode_ == Mode::kReduce && setting_.agreement == Setting::Agreement::kInBackward;
  }
  const BackwardAgreement& agreement() const { return agreement_; }

  /// The host's state after a micro-step with one gradient per parameter and everything reduced.
  struct Snapshot {
    std::vector<uint8_t> used;
    std::vector<ReducedGradient::State> reduced;  ///< per unit
  };
  Snapshot snapshot() const;
  /// Replaces begin_micro_step(), receive() and end_micro_step() in a world of one, when a device
  /// has replayed a captured micro-step. `after` is the host's state after the captured micro-step.
  /// The captured micro-step must have begun in the state that the reducer has now. Local.
  void repeat_micro_step(const Snapshot& after);

  /// Called by step() on every rank before squares() and the vote. If partial sums are kept (1 < g
  /// < o), turns them into means. Does nothing if no partial sums are kept, if none have been added
  /// since the last finish(), or if ranks made different numbers of micro-steps; in the last case
  /// the vote refuses the step. Traffic per unit of S bytes: S / g bytes are reduce-scattered over
  /// N / g ranks, and S / o bytes gathered over N / o ranks. Besides, one word per rank and call.
  /// Collective, blocking.
  void finish();

  /// Returns true if there are sums from kAddLocally that are not reduced yet.
  bool has_local() const { return has_local_; }
  /// Returns true if end_micro_step() has thrown since the last clear(). Then ranks hold sums of
  /// different gradients, and some ranks may have something to reduce that others have not. clear()
  /// on all ranks makes the reducer usable again.
  bool ranks_differ() const { return ranks_differ_; }

  /// clear() drops everything since the last step; drop() only what belongs to parameter `index`.
  /// Local.
  void clear();
  void drop(size_t index);

  /// Returns per table entry 1 if any rank produced a gradient for it in a reduced micro-step since
  /// the last clear(), else 0. Equal on all ranks.
  const std::vector<uint8_t>& used() const { return used_; }
  /// Returns per table entry 1 if this rank holds a sum for it that is not reduced yet, else 0.
  const std::vector<uint8_t>& local() const { return local_; }
  /// Returns per table entry the largest number of NaN or infinite elements that its gradient has
  /// had on this rank since the last clear(), counted in the communication dtype, so overflow in
  /// that dtype counts.
  const std::vector<int64_t>& non_finite() const { return non_finite_; }

  /// Returns the part of `unit` whose gradient this rank has in the end: its optimizer slice. Here
  /// and below, `unit` is less than UnitPlan::trainable_size().
  Range kept(size_t unit) const { return reduced_[unit].kept(); }

  /// Returns the mean gradient of the kept part of `unit` [kept numel] in the reduce dtype; see
  /// gradient().
  const at::Tensor& value(size_t unit) const { return reduced_[unit].value(); }

  /// Returns the mean gradient of the kept part of `unit` [kept numel] in the masters' dtype, for
  /// the optimizer; undefined before the first reduced micro-step (and before finish() if partial
  /// sums are kept). Valid until the next micro-step, clear() or drop(); a caller that calls
  /// clear() next may write to it. If the reduce dtype is not the masters', the gradient is
  /// converted into scratch memory, counted as gradient buffers. That memory is reused once nobody
  /// holds the returned tensor, so a caller that releases each unit's gradient before asking for
  /// the next needs scratch for one unit only.
  at::Tensor gradient(size_t unit);

  /// Adds this rank's part of the norms of gradient(): its own atom of every unit, without padding,
  /// so that the sum over ranks is the same under every strategy. Does not add consumed gradients.
  /// Local.
  void add_to(GradientNorms& norms);
  /// Returns this rank's part of the squared 2-norm of gradient(unit). Local.
  ExactSum squares(size_t unit);

  /// Returns for how many units, at most, gradients arrive or are being reduced at the same time;
  /// see memory_peak_formula.
  int units_in_reduction() const;

  /// Returns, per table entry, the gradient that users may see as `.grad`.
  std::vector<GradientView> gradient_views() const;

 private:
  struct InFlight {
    size_t unit;
    size_t round;
    TimedWork work;    // the first stage, or, if is_gathering, the second
    TimedWork gather;  // the second stage, from its call until it is moved to `work`
    bool is_gathering = false;
    int64_t begin_ns;
    int64_t sent_bytes;
    int64_t worked_ns = 0;  // if traced: time spent in launch() and in advance() while incomplete
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
  GradientObserver& observer_;  // Setting::observer, or GradientObserver::none()
  const bool is_consumed_;      // the observer consumes gradients
  const bool posts_;            // reductions are posted; see Note [Posted reductions]
  const size_t units_;          // number of trainable units
  GradientCommunicator communicator_;
  BufferPool plain_pool_;
  BufferPool root_pool_;

  std::vector<ReducedGradient> reduced_;                                // per unit
  std::vector<std::vector<std::unique_ptr<GradientBuffer>>> arriving_;  // per unit and round
  std::map<at::ScalarType, at::Tensor> scratch_;                        // for gradient()
  std::deque<InFlight> in_flight_;                                      // in launch order

  Mode mode_ = Mode::kReduce;
  double weight_ = 1.0;  // of this micro-step's gradients
  bool has_local_ = false;
  bool ranks_differ_ = false;    // the end of a micro-step has found that ranks differ
  bool is_announced_ = false;    // launch() was called in this micro-step
  int64_t unfinished_ = 0;       // reduced micro-steps since finish() or clear()
  ReductionOrder order_;         // of the units in round 0
  std::vector<size_t> firings_;  // gradients received in this micro-step, per table entry
  // Per unit: how many rounds this micro-step has. Before the exchange of reports this is the
  // number on this rank, afterwards the largest number on any rank.
  std::vector<size_t> rounds_;
  std::vector<uint8_t> local_;       // per table entry
  std::vector<uint8_t> used_;        // per table entry
  std::vector<int64_t> non_finite_;  // per table entry
  BackwardAgreement agreement_;
  // Set if partial sums are kept: finish() compares how many micro-steps the ranks have made.
  std::optional<HostAllGather> partial_sums_;
};

}  // namespace tessera::internal
