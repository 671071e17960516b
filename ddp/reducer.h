#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/grad/landing.h"
#include "tessera/core/layout/parameter_table.h"
#include "tessera/core/layout/unit_plan.h"
#include "tessera/core/memory/memory_meter.h"
#include "tessera/core/sched/slab_pool.h"
#include "tessera/core/step/ballot.h"
#include "tessera/core/step/rolling_hash.h"
#include "tessera/core/strategy.h"
#include "tessera/ddp/reduced_gradient.h"

namespace tessera {

/// Takes gradients from autograd to the reduced gradients that the step uses: lands them in full
/// unit buffers, reduces each unit as soon as it is complete (in the plan's order, the same on all
/// ranks), and adds the results of the backwards of one step. Note [Rounds] and Note [Agreed order]
/// in reducer.cc. Used by one thread.
class Reducer {
 public:
  /// Whether a backward sends (kReduce) or only adds on this rank (kAddLocally, no_sync).
  enum class Mode : uint8_t { kReduce, kAddLocally };

  /// References must outlive the reducer. Collective (allocates from `group`, sends nothing).
  Reducer(ProcessGroup& group, const ParameterTable& table, const UnitPlan& plan, Degrees degrees,
          SlabPool::OnRelease on_release, MemoryMeter& meter, RollingHash& history);
  ~Reducer();

  /// A backward begins to deliver gradients. Local.
  void begin_micro_step(Mode mode);

  /// One gradient of parameter `index` of the table. Under kReduce it may start reductions:
  /// collective in effect.
  void land(size_t index, const at::Tensor& gradient);

  /// The backward is over. Under kReduce: collective, blocking; contributes zeros for what this
  /// rank did not produce, agrees with all ranks on rounds and used parameters, and waits until
  /// everything is reduced. Throws the same c10::Error on every rank where ranks differ in what
  /// they reduced or dropped since the last step; clear() on all ranks mends that.
  void end_micro_step();

  /// Whether sums of kAddLocally wait to be reduced.
  bool has_local() const { return has_local_; }

  /// Drops everything since the last step, or one parameter of it. Local.
  void clear();
  void drop(size_t index);

  /// Per table entry: 1 if any rank produced a gradient for it in a reduced micro-step since the
  /// last clear. Equal on all ranks.
  const std::vector<uint8_t>& used() const { return used_; }
  /// Per table entry: 1 if this rank holds a sum for it that is not reduced yet.
  const std::vector<uint8_t>& local() const { return local_; }
  /// Per table entry: NaN or infinite elements that this rank produced since the last clear.
  const std::vector<int64_t>& non_finite() const { return non_finite_; }

  /// The reduced gradient of a unit. Its value is defined after a reduced micro-step.
  const ReducedGradient& reduced(size_t unit) const { return reduced_[unit]; }

 private:
  struct InFlight {
    size_t unit;
    size_t round;
    std::shared_ptr<Work> work;
  };

  Landing& open_landing(size_t unit, size_t round);
  void close_landing(size_t unit, size_t round);
  void launch(size_t unit, size_t round);
  void launch_complete_units();
  void retire(const InFlight& reduction);
  void retire_completed();
  void retire_all();
  std::string agree();

  ProcessGroup& group_;
  const ParameterTable& table_;
  const UnitPlan& plan_;
  RollingHash& history_;
  MemoryMeter& meter_;
  SlabPool pool_;

  std::vector<ReducedGradient> reduced_;                         // per unit
  std::vector<std::vector<std::unique_ptr<Landing>>> landings_;  // per unit and round
  std::vector<at::Tensor> dedicated_;  // per unit: landing of round 0 where it is kept (zero1)
  std::deque<InFlight> in_flight_;     // in launch order

  Mode mode_ = Mode::kReduce;
  bool has_local_ = false;
  size_t next_launch_ = 0;       // units before it have launched round 0 in this micro-step
  std::vector<size_t> firings_;  // per table entry, in this micro-step
  std::vector<size_t> rounds_;   // per unit, in this micro-step; agreed over ranks after agree()
  std::vector<uint8_t> local_;   // per table entry
  std::vector<uint8_t> used_;    // per table entry
  std::vector<int64_t> non_finite_;  // per table entry
  std::vector<std::string> tags_;    // per unit
  Ballot ballot_;
};

}  // namespace tessera
