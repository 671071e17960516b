#include "tessera/fsdp/residency.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/error_text.h"

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
//
// Most operators read the unit that the one before read. That needs no mutex: such a unit is ready,
// and a pin is a count. Who wants to free it first makes it not ready and then looks at the count,
// a reader counts first and then looks whether it is ready, both in one total order; so either the
// reader is seen, and the unit stays, or the reader sees that it has to wait for the mutex.

namespace {

/// Engine code must not be observed by its own observer.
struct Unobserved {
  at::RecordFunctionGuard guard{/*is_enabled=*/false};
  at::NoGradGuard no_grad;
};

}  // namespace

// --- What operators do ---

void Residency::Unit::pin(Use use) noexcept {
  if (use == Use::kRead) {
    ++pins_;
    if (is_ready_) return;
  }
  const std::lock_guard lock(residency_.mutex);
  if (use == Use::kWrite) {
    if (residency_.writable_holds_ == 0) {
      if (forbidden_writes_++ == 0) buffer_.forbid(residency_.write_error(*this));
      return;
    }
    ++pins_;
  }
  try {
    residency_.use(*this);
  } catch (const std::exception& error) {
    residency_.remember(*this, error);
  }
}

void Residency::Unit::unpin(Use use) noexcept {
  if (use == Use::kRead && !residency_.setting_.free_eagerly) {
    --pins_;
    return;
  }
  const std::lock_guard lock(residency_.mutex);
  if (use == Use::kWrite && forbidden_writes_ > 0) {
    if (--forbidden_writes_ == 0) buffer_.permit();
    return;
  }
  --pins_;
  if (residency_.setting_.free_eagerly && can_free(*this)) residency_.free(*this, After::kUse);
}

void Residency::use(Unit& unit) {
  if (setting_.streams != nullptr) setting_.streams->pass();
  if (unit.own_memory_.defined() || unit.holds_ > 0) {
    if (!unit.is_whole()) make_whole(unit);
  } else if (&unit != last_ || !unit.is_whole()) {
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
  if (!unit.is_whole()) make_whole(unit);
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
  try {
    if (fetch == nullptr) {
      fill(unit, memory);
    } else {
      fetch->wait();
      ++counts_.prefetched;
    }
  } catch (...) {
    give_memory(unit, memory);
    throw;
  }
  unit.buffer_.attach(std::move(memory));
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
  if (!unit.is_whole() || unit.holds_ > 0 || unit.pins_ > 0) return false;
  unit.is_ready_ = false;
  return unit.pins_ == 0;
}

void Residency::free(Unit& unit, After after) {
  const Unobserved unobserved;
  if (after == After::kUse && unit.source_ != nullptr && !setting_.is_inside_backward()) {
    unit.source_->keep_second(unit.buffer_.memory());
  }
  give_memory(unit, unit.buffer_.detach());
  ++counts_.frees;
}

void Residency::free_idle_slabs(const Unit& but) {
  for (const auto& unit : units_) {
    if (unit.get() == &but || unit->own_memory_.defined()) continue;
    if (can_free(*unit)) free(*unit, After::kUse);
  }
}

at::Tensor Residency::take_memory(Unit& unit) {
  const FlatLayout& layout = plan_[unit.index_].layout;
  if (unit.own_memory_.defined()) return unit.own_memory_;
  TORCH_CHECK(!setting_.strict_slabs || pool_.free_slabs(layout.dtype()) > 0, "[fsdp] unit '",
              plan_[unit.index_].name, "': got no free slab, expected one of ", pool_.slabs(),
              " that are there; operators use more units at once than the memory formula counts. "
              "Join them with a wrap policy, or leave strict_slabs off");
  return pool_.acquire(layout.dtype(), layout.numel());
}

void Residency::give_memory(Unit& unit, const at::Tensor& memory) {
  if (unit.is_temporary_) {
    unit.is_temporary_ = false;
    meter_.remove(MemoryClass::kSlabs, static_cast<int64_t>(memory.nbytes()));
  } else if (!unit.own_memory_.defined()) {
    pool_.release(memory);
  } else if (setting_.poison_freed && unit.source_ != nullptr) {
    memory.fill_(std::numeric_limits<double>::quiet_NaN());
  }
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
    give_memory(*unit, std::exchange(unit->fetched_, at::Tensor()));
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

// --- Failure ---

void Residency::remember(Unit& unit, const std::exception& error) {
  if (const auto* failed = dynamic_cast<const CommError*>(&error);
      failed != nullptr && !failure_.has_value()) {
    failure_ = *failed;
  }
  if (unit.original_error_.empty()) unit.original_error_ = unit.buffer_.access_error();
  // The operator goes on and meets the storage; let that say why it has no data.
  unit.buffer_.set_access_error(error_text(error));
}

std::string Residency::write_error(const Unit& unit) const {
  const PlannedUnit& planned = plan_[unit.index_];
  std::string names;
  constexpr size_t kMostNames = 4;
  for (size_t i = 0; i < planned.parameters.size() && i < kMostNames; ++i) {
    absl::StrAppend(&names, i == 0 ? "'" : ", '", table_[planned.parameters[i]].name, "'");
  }
  if (planned.parameters.size() > kMostNames) absl::StrAppend(&names, ", ...");
  return absl::StrCat("[fsdp] unit '", planned.name,
                      "': an operator writes one of its parameters (", names,
                      ") outside engine->modify_parameters(), and the shards of the other ranks "
                      "would not know; write it inside, so that all ranks take the new values");
}

// --- Scopes ---

void Residency::hold(size_t index, bool writable) {
  const Unobserved unobserved;
  Unit& unit = *units_[index];
  if (unit.holds_ == 0 && !unit.is_whole()) {
    drop_prefetches(nullptr);
    const FlatLayout& layout = plan_[index].layout;
    at::Tensor memory = unit.own_memory_;
    if (!memory.defined()) {
      memory = setting_.allocate(layout.numel(), layout.dtype());
      meter_.add(MemoryClass::kSlabs, static_cast<int64_t>(memory.nbytes()));
      unit.is_temporary_ = true;
    }
    const TraceSpan span(trace_, TraceTrack::kGather, plan_[index].name, layout.bytes());
    try {
      fill(unit, memory);
    } catch (...) {
      give_memory(unit, memory);
      throw;
    }
    unit.buffer_.attach(std::move(memory));
    ++counts_.gathers;
  }
  ++unit.holds_;
  if (writable) ++writable_holds_;
}

void Residency::release(size_t index, bool writable) {
  Unit& unit = *units_[index];
  --unit.holds_;
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
  for (const auto& unit : units_) {
    if (unit->source_ != nullptr) unit->source_->invalidate();
  }
  order_.begin();
}

void Residency::close() {
  is_closed_ = true;
  drop_prefetches(nullptr);
  lane_.close();
  for (const auto& unit : units_) {
    unit->is_ready_ = false;
    if (unit->is_whole()) free(*unit, After::kFence);
    if (unit->own_memory_.defined() && unit->source_ != nullptr) {
      meter_.remove(own_class(*unit), static_cast<int64_t>(unit->own_memory_.nbytes()));
    }
  }
  units_.clear();
  pool_.close();
}

GatherCounts Residency::counts() const {
  GatherCounts counts = counts_;
  counts.bytes += prefetched_bytes_;
  counts.slabs_grown = pool_.slabs() - slabs_planned_;
  return counts;
}

}  // namespace tessera
