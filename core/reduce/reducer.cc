#include "tessera/core/reduce/reducer.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/core/sched/trace_span.h"
#include "tessera/core/step/grad_norm.h"
#include "tessera/errors.h"
#include "tessera/trace.h"

namespace tessera::internal {

// Note [Rounds]
// A parameter may receive several gradients within one backward: a module that is used twice
// through re-entrant checkpointing fires its hook once per use. The n-th firing belongs to round n.
// Each round has its own buffer; rounds are reduced and added one after the other, under every
// strategy. (If a rank added locally whenever a buffer is free, and after the reduction otherwise,
// the sum would be rounded differently.) The number of rounds of a unit may differ between ranks
// that take different branches, so ranks agree on the maximum at the end of the backward.
//
// Note [Agreed order]
// Reductions of units start strictly in one order, whatever the order of their gradients, so that
// ranks whose backwards run in different orders post the same sequence of collectives. In the first
// backward it is the plan's order, afterwards the order of rank 0's first backward
// (ReductionOrder). Later rounds follow after the agreement at the end of backward, ordered by
// round and unit.
//
// Note [Posted reductions]
// Where collectives run inside the calls, a reduction is posted (Collective::posted) and later
// hooks poll it, so that no rank waits for another in the middle of backward. If a reduction has
// two stages, the second is called at once and begins when the first is complete
// (Collective::after), even if this rank is then blocked in a collective of the model, waiting for
// a peer that waits for this stage. On a device the host calls the second stage in a later hook. A
// hook waits only if it needs a pooled buffer while reductions hold units_in_reduction() of them.
// The end of backward waits for all reductions, second stages included, before ranks exchange
// anything else. These waits do not deadlock: the first unit in the order does not depend on later
// units, and each rank advances all posted calls while it waits for one.
//
// Note [Announced reductions]
// Calls are compared within one group only. If micro-steps reduce over subgroups (partial sums), a
// rank that makes another call (such as step()) would not be detected, and its peers would wait for
// it until the time-out. So each micro-step and each finish() begins with a small collective of all
// ranks. Gathers over replicas follow a reduction over all ranks and need no such collective.

namespace {

BufferPool::Allocate allocate_from(GradientCommunicator& communicator) {
  return [&](int64_t numel, at::ScalarType dtype) { return communicator.allocate(numel, dtype); };
}

}  // namespace

Reducer::Reducer(ProcessGroup& group, const ParameterTable& table, const UnitPlan& plan,
                 const SliceMap& slices, const Setting& setting, MemoryMeter& meter,
                 RollingHash& history, Trace* trace)
    : group_(group),
      table_(table),
      plan_(plan),
      slices_(slices),
      history_(history),
      meter_(meter),
      trace_(trace),
      setting_(setting),
      observer_(setting.observer != nullptr ? *setting.observer : GradientObserver::none()),
      is_consumed_(observer_.consumes()),
      posts_(group.can().completes_on_host && !group.can().in_background),
      units_(plan.trainable_size()),
      communicator_(group, table, units_, slices, setting.order, setting.hook),
      plain_pool_(allocate_from(communicator_), meter, MemoryClass::kGradientBuffers,
                  setting.on_release),
      root_pool_(allocate_from(communicator_), meter, MemoryClass::kGradientBuffers,
                 setting.on_release),
      arriving_(units_),
      order_(units_, setting.learns_order && setting.agreement == Setting::Agreement::kInBackward),
      firings_(table.size()),
      rounds_(units_),
      local_(table.size()),
      used_(table.size()),
      non_finite_(table.size()),
      agreement_(group, units_, table.size()) {
  reduced_.reserve(units_);
  for (size_t unit = 0; unit < units_; ++unit) {
    pool(unit).reserve(plan[unit].precision.communication, plan[unit].layout.numel());
    reduced_.emplace_back(
        communicator_, plan[unit], slices, setting.divisor,
        is_consumed_ ? ReducedGradient::Keep::kUntilUsed : ReducedGradient::Keep::kUntilStep,
        meter);
  }
  if (communicator_.keeps_partial_sums()) partial_sums_.emplace(group, 1);
  meter.add(MemoryClass::kControl, control_bytes());
}

Reducer::~Reducer() {
  meter_.remove(MemoryClass::kControl, control_bytes());
  for (const auto& [dtype, scratch] : scratch_) {
    if (!scratch.defined()) continue;  // undefined if at::empty() threw in gradient()
    meter_.remove(MemoryClass::kGradientBuffers, static_cast<int64_t>(scratch.nbytes()));
  }
}

int64_t Reducer::control_bytes() const {
  return agreement_.bytes() + (partial_sums_.has_value() ? partial_sums_->bytes() : 0);
}

BufferPool& Reducer::pool(size_t unit) {
  return plan_[unit].kind == UnitKind::kRoot ? root_pool_ : plain_pool_;
}

void Reducer::begin_micro_step(Mode mode, double weight) {
  mode_ = mode;
  weight_ = weight;
  is_announced_ = false;
  order_.begin_micro_step();
  communicator_.begin_micro_step();
  std::fill(firings_.begin(), firings_.end(), 0);
  std::fill(rounds_.begin(), rounds_.end(), 1);
  for (auto& rounds : arriving_) {
    if (!rounds.empty() && rounds[0]->is_open()) rounds[0]->begin_micro_step();
  }
}

GradientBuffer& Reducer::open_buffer(size_t unit, size_t round) {
  auto& rounds = arriving_[unit];
  while (rounds.size() <= round)
    rounds.push_back(std::make_unique<GradientBuffer>(table_, plan_[unit]));
  GradientBuffer& arriving = *rounds[round];
  if (arriving.is_open()) return arriving;
  observer_.rewriting(unit);
  at::Tensor buffer = round == 0 ? reduced_[unit].gradient_buffer() : at::Tensor();
  if (!buffer.defined()) {
    const PlannedUnit& planned = plan_[unit];
    await_buffer(unit);
    buffer = pool(unit).acquire(planned.precision.communication, planned.layout.numel());
  }
  arriving.open(std::move(buffer));
  return arriving;
}

/// Waits until fewer than units_in_reduction() reductions hold buffers of the pool and dtype that
/// `unit` needs. Does not wait on a device.
void Reducer::await_buffer(size_t unit) {
  const auto holds_one = [&](const InFlight& reduction) {
    return &pool(reduction.unit) == &pool(unit) &&
           plan_[reduction.unit].precision.communication == plan_[unit].precision.communication &&
           !reduced_[reduction.unit].owns(arriving_[reduction.unit][reduction.round]->buffer());
  };
  while (group_.can().completes_on_host &&
         std::count_if(in_flight_.begin(), in_flight_.end(), holds_one) >= units_in_reduction()) {
    advance(in_flight_.front(), Wait::kUntilDone);
    in_flight_.pop_front();
  }
}

void Reducer::close_buffer(size_t unit, size_t round) {
  GradientBuffer& arriving = *arriving_[unit][round];
  if (!arriving.is_open()) return;
  const at::Tensor buffer = arriving.close();
  if (!reduced_[unit].owns(buffer)) pool(unit).release(buffer);
}

void Reducer::receive(size_t index, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const UnitPlan::Place place = plan_.place(index);
  if (group_.can().completes_on_host) retire(Wait::kNever);
  // Without reductions there are no rounds: this rank adds all gradients in one buffer, in the
  // order in which the backward makes them.
  const size_t round = mode_ == Mode::kReduce ? firings_[index]++ : 0;
  if (round > 0) require_one_gradient(index);
  rounds_[place.unit] = std::max(rounds_[place.unit], round + 1);

  GradientBuffer& arriving = open_buffer(place.unit, round);
  const int64_t non_finite = arriving.receive(place.position, gradient, weight_);
  non_finite_[index] = std::max(non_finite_[index], non_finite);
  local_[index] = 1;
  if (mode_ == Mode::kReduce && round == 0 && arriving.is_complete()) {
    order_.completed(place.unit);
    launch_complete_units();
  }
}

void Reducer::launch_complete_units() {
  while (order_.has_next()) {
    const auto& rounds = arriving_[order_.next()];
    if (rounds.empty() || !rounds[0]->is_open() || !rounds[0]->is_complete()) break;
    launch(order_.take(), 0);
  }
}

void Reducer::launch(size_t unit, size_t round) {
  if (partial_sums_.has_value() && !is_announced_) group_.barrier("reductions of a micro-step");
  is_announced_ = true;
  GradientBuffer& arriving = open_buffer(unit, round);
  arriving.fill_missing();
  observer_.unreduced(unit, arriving.buffer());
  if (is_consumed_ && arriving.is_complete()) observer_.before_consuming(unit);
  history_.record(RollingHash::Event::kReduce, static_cast<int64_t>(unit));
  const int64_t begin_ns = trace_ != nullptr ? Trace::now_ns() : 0;
  InFlight reduction{
      .unit = unit,
      .round = round,
      .work = TimedWork(setting_.times, [&] { return reduced_[unit].reduce(arriving.buffer()); }),
      .gather = {},
      .begin_ns = begin_ns,
      .sent_bytes = communicator_.sent_bytes(arriving.buffer())};
  note_sent(reduction.sent_bytes);
  if (group_.can().completes_on_host) {
    reduction.gather = TimedWork(setting_.times, [&] {
      return reduced_[unit].gather(arriving.buffer(), reduction.work.work());
    });
  }
  in_flight_.push_back(std::move(reduction));
  if (trace_ != nullptr) in_flight_.back().worked_ns = Trace::now_ns() - begin_ns;
  if (!group_.can().completes_on_host) return retire_behind_last();
  retire(Wait::kNever);
}

void Reducer::note_sent(int64_t bytes) const {
  if (setting_.times != nullptr && setting_.times->is_sampling()) setting_.times->add_bytes(bytes);
}

/// On a device: makes the current stream wait for all reductions except the last ones, whose number
/// is one less than Setting::units_in_reduction. The host does not know when they are complete. So
/// what follows (gathers, reuse of memory) depends on the order of launches alone, which is the
/// same on all ranks; and at most units_in_reduction() units hold gradients that are not reduced.
void Reducer::retire_behind_last() {
  const int may_go_on = setting_.units_in_reduction - 1;
  for (auto reduction = in_flight_.begin(); in_flight_.end() - reduction > may_go_on;) {
    const bool is_done = advance(*reduction, Wait::kOneCollective);
    reduction = is_done ? in_flight_.erase(reduction) : reduction + 1;
  }
}

/// Continues a reduction: as far as possible without waiting (kNever), through its present stage
/// (kOneCollective) or to its end (kUntilDone). Returns true if the reduction is complete.
bool Reducer::advance(InFlight& reduction, Wait wait) {
  const size_t unit = reduction.unit;
  const at::Tensor buffer = arriving_[unit][reduction.round]->buffer();
  const int64_t looked_ns = trace_ != nullptr ? Trace::now_ns() : 0;
  for (;;) {
    if (wait == Wait::kNever && !reduction.work.is_completed()) {
      if (trace_ != nullptr) reduction.worked_ns += Trace::now_ns() - looked_ns;
      return false;
    }
    reduction.work.wait();
    if (reduction.is_gathering) break;
    if (reduction.gather.work() == nullptr) {
      reduction.gather =
          TimedWork(setting_.times, [&] { return reduced_[unit].gather(buffer, nullptr); });
    }
    if (reduction.gather.work() == nullptr) break;
    reduction.work = std::move(reduction.gather);
    reduction.is_gathering = true;
    if (wait == Wait::kOneCollective) return false;
  }
  observer_.rewriting(unit);
  reduced_[unit].add(buffer);
  if (reduced_[unit].value().defined()) observer_.reduced(unit, reduced_[unit].value());
  if (trace_ != nullptr) {
    // A posted reduction is under way while backward runs. So its span shows only the time that
    // this thread spent on it.
    const int64_t begin_ns = posts_ ? looked_ns - reduction.worked_ns : reduction.begin_ns;
    trace_->record(TraceTrack::kReduce, plan_[unit].name, begin_ns, Trace::now_ns(),
                   reduction.sent_bytes);
  }
  if (is_consumed_) {
    if (arriving_[unit][reduction.round]->is_complete()) {
      observer_.consume(unit, gradient(unit), squares(unit));
      reduced_[unit].clear();
    } else {
      reduced_[unit].keep();
    }
  }
  close_buffer(unit, reduction.round);
  return true;
}

int Reducer::units_in_reduction() const {
  const int stages = communicator_.stages(GradientCommunicator::Level::kMicroStep);
  return setting_.units_in_reduction + (group_.can().completes_on_host ? 0 : stages - 1);
}

void Reducer::retire(Wait wait) {
  while (!in_flight_.empty() && advance(in_flight_.front(), wait)) in_flight_.pop_front();
}

bool Reducer::end_micro_step(const BackwardAgreement::Report& report) {
  if (mode_ == Mode::kAddLocally) {
    has_local_ = true;
    history_.record(RollingHash::Event::kNoSyncMicroStep, 0);
    return false;
  }
  const at::NoGradGuard no_grad;
  while (order_.has_next()) launch(order_.take(), 0);
  if (group_.can().completes_on_host) retire(Wait::kUntilDone);
  std::string disagreement;
  if (setting_.agreement == Setting::Agreement::kInBackward) {
    agreement_.report(report);
    std::vector<uint32_t> positions = order_.positions();
    disagreement = agreement_.exchange(history_.value(), local_, rounds_, used_, positions);
    order_.settle(positions);
  } else {
    for (size_t i = 0; i < used_.size(); ++i) used_[i] |= local_[i];
  }
  if (!disagreement.empty()) {
    // All ranks have posted the same collectives so far, so these can complete. Wait for them
    // before throwing.
    retire(Wait::kUntilDone);
    ranks_differ_ = true;
    throw ErrorOnAllRanks(disagreement);
  }
  const size_t rounds = rounds_.empty() ? 0 : *std::max_element(rounds_.begin(), rounds_.end());
  for (size_t round = 1; round < rounds; ++round) {
    for (size_t unit = 0; unit < units_; ++unit)
      if (rounds_[unit] > round) launch(unit, round);
  }
  retire(Wait::kUntilDone);
  std::fill(local_.begin(), local_.end(), uint8_t{0});
  has_local_ = false;
  ++unfinished_;
  history_.record(RollingHash::Event::kMicroStep, 0);
  return agreement_.is_objected();
}

void Reducer::repeat_micro_step(const Snapshot& after) {
  order_.begin_micro_step();
  while (order_.has_next()) {
    const size_t unit = order_.take();
    history_.record(RollingHash::Event::kReduce, static_cast<int64_t>(unit));
    reduced_[unit].restore(after.reduced[unit]);
  }
  used_ = after.used;
  ++unfinished_;
  history_.record(RollingHash::Event::kMicroStep, 0);
}

Reducer::Snapshot Reducer::snapshot() const {
  Snapshot snapshot{.used = used_, .reduced = {}};
  for (const ReducedGradient& reduced : reduced_) snapshot.reduced.push_back(reduced.state());
  return snapshot;
}

void Reducer::finish() {
  if (!partial_sums_.has_value()) return;
  partial_sums_->mine()[0] = unfinished_;
  partial_sums_->exchange("end of partial sums");
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (partial_sums_->of(rank)[0] != unfinished_) return;
  }
  if (std::exchange(unfinished_, 0) == 0) return;

  const at::NoGradGuard no_grad;
  // Start all before waiting for any, so that communication can overlap; the buffers exist anyway.
  std::vector<TimedWork> works(units_);
  const auto wait_for_all = [&works] {
    for (TimedWork& work : works) {
      if (work.work() != nullptr) work.wait();
    }
  };
  const TraceSpan span(trace_, TraceTrack::kReduce, "partial sums");
  for (size_t unit = 0; unit < units_; ++unit) {
    works[unit] = TimedWork(setting_.times, [&] { return reduced_[unit].reduce_sums(); });
    note_sent(reduced_[unit].sum_bytes());
  }
  wait_for_all();
  for (size_t unit = 0; unit < units_; ++unit) {
    works[unit] = TimedWork(setting_.times, [&] { return reduced_[unit].gather_sums(); });
  }
  wait_for_all();
  for (ReducedGradient& reduced : reduced_) reduced.divide();
}

void Reducer::clear() {
  for (size_t unit = 0; unit < units_; ++unit) {
    reduced_[unit].clear();
    for (size_t round = 0; round < arriving_[unit].size(); ++round) close_buffer(unit, round);
  }
  std::fill(local_.begin(), local_.end(), uint8_t{0});
  std::fill(used_.begin(), used_.end(), uint8_t{0});
  std::fill(non_finite_.begin(), non_finite_.end(), int64_t{0});
  has_local_ = ranks_differ_ = false;
  unfinished_ = 0;
}

void Reducer::drop(size_t index) {
  const UnitPlan::Place place = plan_.place(index);
  observer_.rewriting(place.unit);
  reduced_[place.unit].drop(plan_[place.unit].layout.parameter_range(place.position));
  auto& rounds = arriving_[place.unit];
  if (!rounds.empty() && rounds[0]->is_open()) rounds[0]->drop(place.position);
  local_[index] = used_[index] = 0;
  non_finite_[index] = 0;
}

// --- What the step and users see of the reduced gradients ---

at::Tensor Reducer::gradient(size_t unit) {
  const at::Tensor& value = reduced_[unit].value();
  const at::ScalarType master = plan_[unit].precision.master;
  if (!value.defined() || value.scalar_type() == master) return value;
  const at::NoGradGuard no_grad;
  at::Tensor& scratch = scratch_[master];
  const bool is_held = scratch.defined() && scratch.storage().use_count() > 1;
  if (!scratch.defined() || is_held || scratch.numel() < value.numel()) {
    if (scratch.defined()) {
      meter_.remove(MemoryClass::kGradientBuffers, static_cast<int64_t>(scratch.nbytes()));
    }
    scratch.reset();  // free the old one before allocating the new one
    scratch = at::empty({value.numel()}, value.options().dtype(master));
    meter_.add(MemoryClass::kGradientBuffers, static_cast<int64_t>(scratch.nbytes()));
  }
  return scratch.narrow(0, 0, value.numel()).copy_(value);
}

/// Returns what this rank keeps of the mean gradient of `unit`, in the dtype in which norms are
/// computed. Returns an undefined tensor if there is no such gradient.
at::Tensor Reducer::counted(size_t unit) {
  const UnitPrecision& precision = plan_[unit].precision;
  // If the masters' dtype is narrower than the reduce dtype, compute norms from gradients in the
  // masters' dtype, because finite values may overflow in it. If it is wider, the conversion would
  // not change the values.
  const bool is_narrowed = c10::elementSize(precision.master) < c10::elementSize(precision.reduce);
  return is_narrowed ? gradient(unit) : reduced_[unit].value();
}

void Reducer::add_to(GradientNorms& norms) {
  for (size_t unit = 0; unit < units_; ++unit) {
    const at::Tensor value = counted(unit);
    if (!value.defined()) continue;
    norms.add(plan_[unit], slices_.atom(plan_[unit].layout), value, kept(unit).begin);
  }
}

ExactSum Reducer::squares(size_t unit) {
  ExactSum sum;
  const at::Tensor value = counted(unit);
  if (!value.defined()) return sum;
  for (Segment segment : plan_[unit].layout.segments(slices_.atom(plan_[unit].layout))) {
    segment.buffer_offset -= kept(unit).begin;
    add_squares(value, segment, sum);
  }
  return sum;
}

std::vector<GradientView> Reducer::gradient_views() const {
  std::vector<GradientView> views(table_.size());
  for (size_t i = 0; i < views.size(); ++i) {
    if (!plan_.has_place(i) || plan_.place(i).unit >= units_) continue;
    const UnitPlan::Place place = plan_.place(i);
    const PlannedUnit& unit = plan_[place.unit];
    const at::Tensor& whole = reduced_[place.unit].whole();
    if (is_consumed_) {
      views[i].obstacle = "was applied in backward (Options::optimizer_in_backward)";
    } else if (!whole.defined()) {
      views[i].obstacle = "is sharded over ranks";
    } else if (whole.scalar_type() != unit.precision.parameters) {
      views[i].obstacle = absl::StrCat("is kept in ", c10::toString(unit.precision.reduce),
                                       " (Precision::reduce), which .grad "
                                       "of a parameter in ",
                                       c10::toString(unit.precision.parameters), " cannot be");
    } else {
      views[i].whole =
          view_like(whole, unit.layout.parameter_range(place.position), table_[i].tensor);
    }
  }
  return views;
}

/// Called when a parameter gets another gradient in the same backward (Note [Rounds]). Throws if
/// only one is allowed.
void Reducer::require_one_gradient(size_t index) const {
  TORCH_CHECK(!is_consumed_, "[grad] '", table_[index].name,
              "': got a second gradient within one backward, expected one; its unit may have been "
              "updated with the first. Leave Options::optimizer_in_backward off, or do not use a "
              "module twice through re-entrant checkpointing");
  TORCH_CHECK(
      setting_.agreement == Setting::Agreement::kInBackward, "[grad] '", table_[index].name,
      "': got a second gradient within one backward, expected one, because ranks do not "
      "tell each other how many there are. Set Options::asynchronous_step to false, or do not "
      "use a module twice through re-entrant checkpointing");
  TORCH_CHECK(communicator_.order() == SumOrder::kRanks, "[grad] '", table_[index].name,
              "': got a second gradient within one backward, expected one, because each is added "
              "over ranks by itself, and that is another order than the micro-batch's own sum. "
              "Leave Options::reproducible out, or do not use a module twice through re-entrant "
              "checkpointing");
}
}  // namespace tessera::internal
