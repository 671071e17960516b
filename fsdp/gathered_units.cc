#include "tessera/fsdp/gathered_units.h"

#include <numeric>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "tessera/core/memory/private_memory.h"
#include "tessera/fsdp/collective_source.h"
#include "tessera/fsdp/gathered_unit.h"

namespace tessera::internal {

// Note [Whole while needed]
// An operator pins the units that it uses while it runs. When an operator uses a unit other than
// the one that was used last, all units that no operator pins and no scope holds are freed, and
// then the unit is gathered. So one unsharded-parameter buffer is enough for a chain of blocks, and
// with a second one the next unit can be prefetched. If an operator needs a unit whose prefetch is
// still under way, the first buffer is free already, so the unit after that one is requested at
// once. If that request were made only after the prefetched unit had arrived, it would wait for
// traffic in the other direction, and meanwhile the link would idle. The unit that is used last in
// forward is used first in backward and stays whole. An operator that reads three units pins three.
// Then the pool adds a buffer instead of waiting until one is free. Root units, and all units if
// none is freed after forward, have memory of their own, which is filled at their first use and
// counts as free again when backward has ended. Where ranks share parameters, nothing is copied.
//
// Where ranks read each other's memory, nothing here waits for what another rank does. Shards are
// read in place, or sent by their owners while the owners compute (Note [Windows over MPI]). They
// change only in a step (Note [The step is a fence]). Where ranks cannot read each other's memory,
// a gather is a collective, on a group of its own so that gathers and reductions need no common
// order. There all ranks must use units in the same order, and what is prefetched or dropped
// depends on that order only.

namespace {

BufferPool::Allocate memory_of(ProcessGroup* gathering) {
  if (gathering == nullptr) return &allocate_private;
  return [gathering](int64_t numel, at::ScalarType dtype) {
    return gathering->allocate(numel, dtype);
  };
}

Lane::Mode lane_mode(bool prefetch) { return prefetch ? Lane::Mode::kThread : Lane::Mode::kInline; }

bool are_shared(const FlatParameters& flat, const UnitPlan& plan) {
  return plan.size() > 0 && flat.whole(0).defined();
}

}  // namespace

std::shared_ptr<ProcessGroup> make_gathering_group(ProcessGroup& group, const SliceMap& slices) {
  if (slices.degrees().parameters == group.size()) return duplicate(group, "gathers");
  return split(group, slices.colors({SliceMap::Axis::kParameters}), "gathers");
}

// --- From the first operator to the last ---

std::shared_ptr<GatheredUnits> GatheredUnits::make(Parts parts, Setting setting) {
  struct Owner {
    explicit Owner(std::shared_ptr<GatheredUnits> units) : units(std::move(units)) {}
    ~Owner() { units->close(); }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

    const std::shared_ptr<GatheredUnits> units;
  };
  const FlatParameters& flat = parts.flat;
  const auto owner = std::make_shared<Owner>(
      std::shared_ptr<GatheredUnits>(new GatheredUnits(std::move(parts), std::move(setting))));
  owner->units->watch(flat);
  return {owner, owner->units.get()};
}

GatheredUnits::GatheredUnits(Parts parts, Setting setting)
    : setting_(std::move(setting)),
      plan_(parts.plan),
      table_(parts.table),
      trace_(parts.trace),
      gathering_(std::move(parts.gathering)),
      memory_(plan_, memory_of(gathering_.get()),
              {.fixed_unsharded_buffers = setting_.fixed_unsharded_buffers,
               .poison_freed = setting_.poison_freed},
              parts.meter),
      lanes_{Lane(lane_mode(setting_.prefetch)), Lane(lane_mode(setting_.prefetch))} {
  ProcessGroup& group = parts.group;
  if (plan_.size() > 0 && parts.flat.shard(0).device() != group.device()) {
    host_ =
        std::make_shared<ShardUploads>(device_at(group.device()), /*rounded_bytes=*/0, parts.meter);
  }
  WindowSource::SecondShards second{.ranks = setting_.ranks_after_forward};
  if (second.ranks > 1 && second.ranks < parts.slices.degrees().parameters &&
      !are_shared(parts.flat, plan_) && gathering_ == nullptr) {
    const at::Tensor stamps = group.allocate(static_cast<int64_t>(plan_.size()), at::kLong);
    stamps.zero_();
    stamps_ = group.make_window(stamps, "second shards");
    second.stamps = stamps_.get();
  }
  for (size_t index = 0; index < plan_.size(); ++index) add(index, parts, second);
  memory_.fill_buffers();
}

GatheredUnits::~GatheredUnits() = default;

void GatheredUnits::add(size_t index, const Parts& parts, WindowSource::SecondShards second) {
  const PlannedUnit& planned = plan_[index];
  const bool keeps_whole =
      setting_.ranks_after_forward == 1 && parts.slices.degrees().parameters > 1;
  Unit::Source source;
  if (are_shared(parts.flat, plan_)) {
    memory_.add_shared(parts.flat.whole(index));
  } else {
    if (gathering_ != nullptr) {
      source.collective = std::make_unique<CollectiveSource>(*gathering_, planned.name,
                                                             parts.flat.shard(index), host_);
    } else {
      second.place = static_cast<int64_t>(index);
      source.window =
          std::make_unique<WindowSource>(parts.group, parts.slices, planned.layout, planned.name,
                                         parts.flat.shard(index), second, parts.meter);
    }
    if (planned.kind == UnitKind::kRoot || keeps_whole) {
      memory_.add_in_own();
    } else {
      memory_.add_in_buffers();
    }
  }
  units_.push_back(std::make_unique<Unit>(*this, index, parts.flat.full(index), std::move(source)));
}

/// Makes operators pin the units that they use. This object lives at least until close() removes
/// the observer, and until all operators that were running then have ended, because the observer
/// and those operators hold pointers to it.
void GatheredUnits::watch(const FlatParameters& flat) {
  std::vector<AccessObserver::Watched> watched;
  for (const auto& unit : units_) {
    const std::shared_ptr<AccessTarget> target(shared_from_this(), unit.get());
    for (auto& storage : flat.watched(unit->index(), target)) watched.push_back(std::move(storage));
  }
  observer_ = std::make_unique<AccessObserver>(std::move(watched));
}

/// Called when the last copy of the pointer from make() has gone, and with it the engine. Scopes
/// and operators may still exist.
void GatheredUnits::close() {
  observer_.reset();
  {
    const std::lock_guard lock(mutex_);
    drop_prefetches(nullptr);
    for (Lane& lane : lanes_) lane.close();
    is_closed_ = true;
    for (const auto& unit : units_) unit->close();
    memory_.close();
    for (const auto& unit : units_) unit->drop_old();
  }
  stamps_.reset();
  host_.reset();
  gathering_.reset();
}

// --- An operator touches a unit ---

void GatheredUnits::use(Unit& unit) {
  if (setting_.streams != nullptr) setting_.streams->pass();
  if (unit.has_own_memory() || unit.is_held()) {
    if (!unit.is_fresh()) unit.make_whole();
  } else if (&unit != last_ || !unit.is_fresh()) {
    enter(unit);
  }
  // With streams, every use of a unit must call StreamJoin::pass() first, which needs the mutex. So
  // there a unit is never ready, and pin() always takes the mutex.
  unit.set_ready(!setting_.free_eagerly && setting_.streams == nullptr);
}

/// Called when an operator uses a unit that lies in unsharded-parameter buffers, unless that unit
/// is the one used last and is whole with present values.
void GatheredUnits::enter(Unit& unit) {
  const bool is_next = &unit != last_;
  if (is_next && last_ != nullptr) last_->set_ready(false);  // so that its next use calls enter()
  last_ = &unit;
  free_idle_buffers(unit);
  if (is_next) drop_prefetches(&unit);
  std::optional<size_t> expected;
  if (is_next && !setting_.free_eagerly) expected = order_.visit(phase(), unit.index());
  const bool is_expected = expected.has_value() && setting_.prefetch;
  if (is_expected && unit.is_being_read()) units_[*expected]->prefetch();
  if (!unit.is_fresh()) unit.make_whole();
  if (is_expected) units_[*expected]->prefetch();
}

void GatheredUnits::free_idle_buffers(const Unit& but) {
  for (const auto& unit : units_) {
    if (unit.get() == &but || unit->has_own_memory()) continue;
    if (unit->can_free()) unit->free(Unit::After::kUse);
  }
}

/// Waits for the prefetches of all units except `but` (may be null), and gives their memory back.
void GatheredUnits::drop_prefetches(const Unit* but) {
  for (const auto& unit : units_) {
    if (unit.get() != but) unit->drop_prefetch();
  }
}

AccessOrder::Phase GatheredUnits::phase() const {
  if (setting_.is_inside_backward()) return AccessOrder::Phase::kBackward;
  return at::GradMode::is_enabled() ? AccessOrder::Phase::kForward
                                    : AccessOrder::Phase::kForwardWithoutGrad;
}

WindowSource::From GatheredUnits::source_now() const {
  return setting_.is_inside_backward() ? WindowSource::From::kSecond : WindowSource::From::kFirst;
}

/// Returns the lane whose last read started longest ago.
Lane& GatheredUnits::next_lane() {
  next_lane_ = (next_lane_ + 1) % lanes_.size();
  return lanes_[next_lane_];
}

AccessTarget& GatheredUnits::target(size_t unit) const { return *units_[unit]; }

// --- Fences ---

void GatheredUnits::free_all() {
  const std::lock_guard lock(mutex_);
  drop_prefetches(nullptr);
  for (const auto& unit : units_) {
    if (unit->can_free()) unit->free(Unit::After::kFence);
  }
  if (last_ != nullptr) last_->set_ready(false);
  last_ = nullptr;
}

void GatheredUnits::values_changed() {
  const std::lock_guard lock(mutex_);
  drop_prefetches(nullptr);
  written_.reset();
  for (const auto& unit : units_) unit->invalidate();
  last_ = nullptr;
  order_.begin();
}

void GatheredUnits::await_copies() {
  const std::lock_guard lock(mutex_);
  if (host_ != nullptr) host_->await();
}

// --- Scopes ---

std::shared_ptr<void> GatheredUnits::hold(const std::vector<size_t>& units, HoldMode mode) {
  const bool writable = mode == HoldMode::kWritable;
  {
    const std::lock_guard lock(mutex_);
    size_t held = 0;
    try {
      for (; held < units.size(); ++held) units_[units[held]]->hold(writable);
    } catch (...) {
      while (held > 0) units_[units[--held]]->release(writable);
      throw;
    }
  }
  return {this, [self = shared_from_this(), units, writable](void*) {
            if (!self->origin_.is_here()) return;
            const std::lock_guard guard(self->mutex_);
            for (const size_t unit : units) self->units_[unit]->release(writable);
          }};
}

std::shared_ptr<void> GatheredUnits::hold_all(HoldMode mode) {
  std::vector<size_t> units(units_.size());
  std::iota(units.begin(), units.end(), size_t{0});
  return hold(units, mode);
}

// --- Numbers ---

std::optional<CommError> GatheredUnits::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<size_t> GatheredUnits::written() const {
  const std::lock_guard lock(mutex_);
  return written_;
}

GatherCounts GatheredUnits::counts() const {
  const std::lock_guard lock(mutex_);
  GatherCounts counts = counts_;
  counts.bytes += prefetched_bytes_;
  counts.unsharded_buffers_added = memory_.unsharded_buffers_added();
  return counts;
}

int64_t GatheredUnits::history() const {
  const std::lock_guard lock(mutex_);
  return gathers_.value();
}

}  // namespace tessera::internal
