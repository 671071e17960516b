#include "tessera/fsdp/residency.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/access/unobserved.h"

namespace tessera {

// Note [Whole while needed]
// An operator that uses a unit pins it for as long as it runs. The first operator of another unit
// frees the units that nobody pins or holds, then gathers its own, so one slab is enough for a
// chain of blocks and a second one lets the next unit be fetched meanwhile. The unit that is live
// when forward turns into backward is touched again at once and stays. An operator that reads three
// units pins three: the pool grows rather than wait for anybody. Root units and, where units stay
// whole after forward, all of them have buffers of their own, which are filled once and freed when
// backward has ended. Where ranks share parameters, there is nothing to fill either.
//
// Where ranks read each other's memory, nothing here waits for another rank: shards are read where
// they lie and change only behind the fence of a step. Elsewhere a gather is a collective of a
// group of its own, so that gathers and reductions need not come in one order; ranks then have to
// touch units in the same order, and what is fetched or dropped ahead of time follows from that
// order alone.

// --- Coming and going ---

void Residency::use(Unit& unit) {
  if (setting_.streams != nullptr) setting_.streams->pass();
  if (unit.own_memory_.defined() || unit.holds_ > 0) {
    if (!unit.is_fresh()) make_whole(unit);
  } else if (&unit != last_ || !unit.is_fresh()) {
    enter(unit);
  }
  // A use on another stream has to be ordered first.
  unit.is_ready_ = !setting_.free_eagerly && setting_.streams == nullptr;
}

void Residency::enter(Unit& unit) {
  const bool is_next = &unit != last_;
  if (is_next && last_ != nullptr) last_->is_ready_ = false;  // its next use enters it again
  last_ = &unit;
  free_idle_slabs(unit);
  if (is_next) drop_prefetches(&unit);
  if (!unit.is_fresh()) make_whole(unit);
  if (!is_next || setting_.free_eagerly) return;
  const std::optional<size_t> expected = order_.visit(phase(), unit.index_);
  if (expected.has_value() && setting_.prefetch) prefetch(*units_[*expected]);
}

void Residency::make_whole(Unit& unit) {
  const Unobserved unobserved;
  const PlannedUnit& planned = plan_[unit.index_];
  const std::shared_ptr<Work> fetch = std::exchange(unit.fetch_, nullptr);
  const TraceSpan span(trace_, TraceTrack::kGather, planned.name,
                       fetch == nullptr ? planned.layout.bytes() : 0);
  at::Tensor memory =
      fetch == nullptr ? take_memory(unit) : std::exchange(unit.fetched_, at::Tensor());
  fill_and_attach(unit, std::move(memory), /*is_temporary=*/false, fetch);
}

/// `fetch`: what fills it already; null if nothing does.
void Residency::fill_and_attach(Unit& unit, at::Tensor memory, bool is_temporary,
                                const std::shared_ptr<Work>& fetch) {
  try {
    if (fetch == nullptr) {
      fill(unit, memory);
    } else {
      fetch->wait();
      ++counts_.prefetched;
    }
  } catch (...) {
    give_memory(unit, memory, is_temporary);
    if (unit.is_stale_) set_aside(unit, unit.buffer_.detach());  // better none than old values
    throw;
  }
  if (unit.is_stale_) {
    set_aside(unit, unit.buffer_.replace(std::move(memory)));
  } else {
    unit.buffer_.attach(std::move(memory));
  }
  unit.readers_.load()->is_temporary = is_temporary;
  ++counts_.gathers;
  if (!unit.original_error_.empty()) {
    unit.buffer_.set_access_error(std::exchange(unit.original_error_, ""));
  }
}

void Residency::fill(const Unit& unit, const at::Tensor& memory) {
  if (unit.source_ == nullptr) return;
  if (const std::shared_ptr<Work> gather = start_together(unit, memory); gather != nullptr) {
    gather->wait();
  } else {
    counts_.bytes += unit.source_->fetch(memory, source_now());
  }
}

/// Null where ranks gather each for itself.
std::shared_ptr<Work> Residency::start_together(const Unit& unit, const at::Tensor& memory) {
  std::shared_ptr<Work> gather = unit.source_->start(memory);
  if (gather == nullptr) return nullptr;
  counts_.bytes += unit.source_->received_bytes();
  // Two units of one size would be taken for each other without any error; the vote compares this.
  gathers_.record(RollingHash::Event::kGather, static_cast<int64_t>(unit.index_));
  return gather;
}

/// Whether nobody uses it; if so, readers wait for the mutex from now on.
bool Residency::can_free(Unit& unit) {
  // Readers of earlier memory too: one that has not asked for its address yet finds the present
  // one.
  const auto is_read = [&unit] {
    return std::any_of(unit.all_readers_.begin(), unit.all_readers_.end(),
                       [](const auto& readers) { return readers->pins > 0; });
  };
  if (!unit.is_whole() || unit.holds_ > 0 || unit.refused_.pins > 0 || is_read()) return false;
  unit.is_ready_ = false;
  return !is_read();
}

void Residency::free(Unit& unit, After after) {
  const Unobserved unobserved;
  if (after == After::kUse && unit.source_ != nullptr && !unit.is_stale_ &&
      !setting_.is_inside_backward()) {
    unit.source_->keep_second(unit.buffer_.memory());
  }
  unit.is_stale_ = false;
  give_memory(unit, unit.buffer_.detach(),
              std::exchange(unit.readers_.load()->is_temporary, false));
  ++counts_.frees;
}

void Residency::free_idle_slabs(const Unit& but) {
  for (const auto& unit : units_) {
    if (unit.get() == &but || unit->own_memory_.defined()) continue;
    if (can_free(*unit)) free(*unit, After::kUse);
  }
}

at::Tensor Residency::take_memory(Unit& unit) {
  if (unit.own_memory_.defined()) return take_own_memory(unit);
  const FlatLayout& layout = plan_[unit.index_].layout;
  TORCH_CHECK(!setting_.strict_slabs || pool_.free_slabs(layout.dtype()) > 0, "[fsdp] unit '",
              plan_[unit.index_].name, "': got no free slab, expected one of ", pool_.slabs(),
              " that are there; operators use more units at once than the memory formula counts. "
              "Join them with a wrap policy, or leave strict_slabs off");
  return pool_.acquire(layout.dtype(), layout.numel());
}

/// Another one while operators read old values there.
at::Tensor Residency::take_own_memory(Unit& unit) {
  if (!unit.is_stale_) return unit.own_memory_;
  const FlatLayout& layout = plan_[unit.index_].layout;
  unit.own_memory_ = setting_.allocate(layout.numel(), layout.dtype());
  meter_.add(own_class(unit), layout.bytes());
  return unit.own_memory_;
}

at::Tensor Residency::take_temporary(const Unit& unit) {
  const FlatLayout& layout = plan_[unit.index_].layout;
  at::Tensor memory = setting_.allocate(layout.numel(), layout.dtype());
  meter_.add(MemoryClass::kSlabs, static_cast<int64_t>(memory.nbytes()));
  return memory;
}

void Residency::give_memory(Unit& unit, const at::Tensor& memory, bool is_temporary) {
  const Unobserved unobserved;
  if (stop_counting(unit, memory, is_temporary)) return;
  if (!unit.own_memory_.defined()) {
    pool_.release(memory);
  } else if (setting_.poison_freed && unit.source_ != nullptr) {
    memory.fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

/// Whether `memory` serves nobody after its present use; if so, it is not counted any more.
bool Residency::stop_counting(const Unit& unit, const at::Tensor& memory, bool is_temporary) {
  const bool is_replaced = unit.own_memory_.defined() && !memory.is_same(unit.own_memory_);
  if (!is_temporary && !is_replaced) return false;
  meter_.remove(is_temporary ? MemoryClass::kSlabs : own_class(unit),
                static_cast<int64_t>(memory.nbytes()));
  return true;
}

// --- Ahead of time ---

void Residency::prefetch(Unit& unit) {
  if (unit.is_whole() || unit.fetch_ != nullptr) return;
  if (!unit.own_memory_.defined() && pool_.free_slabs(plan_[unit.index_].layout.dtype()) == 0)
    return;
  const Unobserved unobserved;
  unit.fetched_ = take_memory(unit);
  unit.fetch_ = start_together(unit, unit.fetched_);
  if (unit.fetch_ != nullptr) return;
  unit.fetch_ = lane_.post([this, &unit, memory = unit.fetched_, from = source_now()] {
    const Unobserved in_lane;
    const TraceSpan span(trace_, TraceTrack::kGather, plan_[unit.index_].name,
                         plan_[unit.index_].layout.bytes());
    const int64_t bytes = unit.source_->fetch(memory, from);
    prefetched_bytes_ += bytes;
  });
}

/// Gives back what was fetched for a use that did not come. Fetches of `but` stay.
void Residency::drop_prefetches(const Unit* but) {
  for (const auto& unit : units_) {
    if (unit->fetch_ == nullptr || unit.get() == but) continue;
    const Unobserved unobserved;
    try {
      unit->fetch_->wait();
    } catch (const std::exception&) {
      // Nobody needed it; who does will meet the same failure.
    }
    unit->fetch_ = nullptr;
    give_memory(*unit, std::exchange(unit->fetched_, at::Tensor()), /*is_temporary=*/false);
  }
}

UnitSource::From Residency::source_now() const {
  return setting_.is_inside_backward() ? UnitSource::From::kSecond : UnitSource::From::kFirst;
}

AccessOrder::Phase Residency::phase() const {
  if (setting_.is_inside_backward()) return AccessOrder::Phase::kBackward;
  return at::GradMode::is_enabled() ? AccessOrder::Phase::kForward
                                    : AccessOrder::Phase::kForwardWithoutGrad;
}

// --- Scopes ---

void Residency::hold(size_t index, bool writable) {
  const Unobserved unobserved;
  Unit& unit = *units_[index];
  if (unit.holds_ == 0) {
    if (unit.has_old_) drop_old(unit);
    // What operators read now is not for writing.
    if (writable && unit.source_ != nullptr && unit.is_whole() && !can_free(unit)) mark_stale(unit);
    if (!unit.is_fresh()) {
      drop_prefetches(nullptr);
      const TraceSpan span(trace_, TraceTrack::kGather, plan_[index].name,
                           plan_[index].layout.bytes());
      const bool is_temporary = !unit.own_memory_.defined();
      fill_and_attach(unit, is_temporary ? take_temporary(unit) : take_own_memory(unit),
                      is_temporary, nullptr);
    }
  }
  ++unit.holds_;
  if (writable) ++writable_holds_;
}

void Residency::release(size_t index, bool writable) {
  Unit& unit = *units_[index];
  --unit.holds_;
  if (is_closed_) return drop_old(unit);
  if (writable) --writable_holds_;
  unit.is_ready_ = false;
  if (can_free(unit)) free(unit, After::kFence);
}

// --- The whole ---

Residency::Residency(const UnitPlan& plan, const ParameterTable& table, ResidencySetting setting,
                     MemoryMeter& meter, Trace* trace)
    : plan_(plan),
      table_(table),
      setting_(std::move(setting)),
      meter_(meter),
      trace_(trace),
      pool_(setting_.allocate, meter, MemoryClass::kSlabs,
            setting_.poison_freed ? SlabPool::OnRelease::kPoison : SlabPool::OnRelease::kKeep),
      lane_(setting_.prefetch ? Lane::Mode::kThread : Lane::Mode::kInline) {}

Residency::~Residency() = default;

Residency::Unit& Residency::add(FreeableBuffer& buffer, std::unique_ptr<UnitSource> source,
                                Memory memory) {
  const size_t index = units_.size();
  const PlannedUnit& planned = plan_[index];
  units_.push_back(std::make_unique<Unit>(*this, index, buffer, std::move(source)));
  Unit& unit = *units_.back();
  if (memory == Memory::kSlab) {
    pool_.reserve(planned.layout.dtype(), planned.layout.numel());
    return unit;
  }
  unit.own_memory_ = setting_.allocate(planned.layout.numel(), planned.layout.dtype());
  meter_.add(own_class(unit), planned.layout.bytes());
  return unit;
}

Residency::Unit& Residency::add(FreeableBuffer& buffer, at::Tensor whole) {
  units_.push_back(std::make_unique<Unit>(*this, units_.size(), buffer, nullptr));
  units_.back()->own_memory_ = std::move(whole);
  return *units_.back();
}

MemoryClass Residency::own_class(const Unit& unit) const {
  return plan_[unit.index_].kind == UnitKind::kRoot ? MemoryClass::kRoot : MemoryClass::kSlabs;
}

void Residency::fill_slabs() {
  constexpr int64_t kSteadySlabs = 2;
  std::map<at::ScalarType, int64_t> units;
  for (const auto& unit : units_) {
    if (!unit->own_memory_.defined()) ++units[plan_[unit->index_].layout.dtype()];
  }
  for (const auto& [dtype, count] : units) pool_.fill(dtype, std::min(count, kSteadySlabs));
  slabs_planned_ = pool_.slabs();
}

void Residency::free_all() {
  drop_prefetches(nullptr);
  for (const auto& unit : units_) {
    if (can_free(*unit)) free(*unit, After::kFence);
  }
  if (last_ != nullptr) last_->is_ready_ = false;
  last_ = nullptr;
}

void Residency::values_changed() {
  drop_prefetches(nullptr);
  for (const auto& unit : units_) {
    if (unit->source_ == nullptr) continue;
    unit->source_->invalidate();
    // What a scope holds has been written there too: steps and loaded state allow no scope.
    if (unit->is_whole() && unit->holds_ == 0) mark_stale(*unit);
  }
  last_ = nullptr;
  order_.begin();
}

void Residency::close() {
  drop_prefetches(nullptr);
  lane_.close();
  is_closed_ = true;
  for (const auto& unit : units_) {
    unit->is_ready_ = false;
    unit->is_stale_ = false;
    if (unit->is_whole()) unit->readers_.load()->kept = unit->buffer_.detach();
    for (const auto& readers : unit->all_readers_) {
      if (readers->kept.defined()) stop_counting(*unit, readers->kept, readers->is_temporary);
    }
    if (unit->own_memory_.defined() && unit->source_ != nullptr) {
      meter_.remove(own_class(*unit), static_cast<int64_t>(unit->own_memory_.nbytes()));
    }
    unit->own_memory_.reset();
    unit->source_.reset();
    drop_old(*unit);
  }
  pool_.close();
}

GatherCounts Residency::counts() const {
  GatherCounts counts = counts_;
  counts.bytes += prefetched_bytes_;
  counts.slabs_grown = pool_.slabs() - slabs_planned_;
  return counts;
}

}  // namespace tessera
