#include "tessera/fsdp/gathered_units.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/memory/private_memory.h"

namespace tessera {

// Note [Whole while needed]
// An operator that uses a unit pins it for as long as it runs. The first operator of another unit
// frees the units that nobody pins or holds, then gathers its own, so one slab is enough for a
// chain of blocks and a second one lets the next unit be fetched meanwhile. The unit that is live
// when forward turns into backward is touched again at once and stays. An operator that reads three
// units pins three: the pool grows rather than wait for anybody. Root units and, where units stay
// whole after forward, all of them have buffers of their own, which are filled once and freed when
// backward has ended.
//
// Nothing here waits for another rank: shards are read where they lie and change only behind the
// fence of a step.

namespace {

/// Engine code must not be observed by its own observer.
struct Unobserved {
  at::RecordFunctionGuard guard{/*is_enabled=*/false};
  at::NoGradGuard no_grad;
};

std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace

/// One unit and what it is going through. The mutex of the body guards it.
class GatheredUnits::Unit final : public AccessTarget {
 public:
  Unit(Body& body, size_t index, FreeableBuffer& buffer, std::unique_ptr<UnitSource> source)
      : body_(body), index_(index), buffer_(buffer), source_(std::move(source)) {}

  void pin(Use use) noexcept override;
  void unpin(Use use) noexcept override;

  bool is_idle() const { return pins_ == 0 && holds_ == 0; }
  bool is_whole() const { return buffer_.has_memory(); }

  Body& body_;
  const size_t index_;
  FreeableBuffer& buffer_;
  const std::unique_ptr<UnitSource> source_;
  at::Tensor own_memory_;  // of root and kept units; undefined: slabs are used

  int64_t pins_ = 0;
  int64_t holds_ = 0;
  int64_t forbidden_writes_ = 0;
  bool is_temporary_ = false;  // its memory was made for a hold
  at::Tensor fetched_;         // what a prefetch under way fills
  std::shared_ptr<Work> fetch_;
};

struct GatheredUnits::Body {
  Body(const UnitPlan& plan, const ParameterTable& table, Setting setting, MemoryMeter& meter,
       Trace* trace)
      : plan(plan),
        table(table),
        setting(std::move(setting)),
        meter(meter),
        trace(trace),
        pool(
            &allocate_private, meter, MemoryClass::kSlabs,
            this->setting.poison_freed ? SlabPool::OnRelease::kPoison : SlabPool::OnRelease::kKeep),
        lane(this->setting.prefetch ? Lane::Mode::kThread : Lane::Mode::kInline) {}

  void use(Unit& unit);
  void make_whole(Unit& unit);
  void free(Unit& unit);
  void free_idle_slabs(const Unit& but);
  void prefetch(Unit& unit);
  void drop_prefetches(const Unit* but);
  at::Tensor take_memory(Unit& unit);
  void give_memory(Unit& unit, at::Tensor memory);
  UnitSource::From source_now() const;
  AccessOrder::Phase phase() const;
  void remember(Unit& unit, const std::exception& error);
  std::string write_error(const Unit& unit) const;
  void hold(Unit& unit);
  void release(Unit& unit);

  const UnitPlan& plan;
  const ParameterTable& table;
  const Setting setting;
  MemoryMeter& meter;
  Trace* const trace;

  mutable std::mutex mutex;
  std::vector<std::unique_ptr<Unit>> units;
  SlabPool pool;
  int64_t slabs_planned = 0;
  AccessOrder order;
  const Unit* last = nullptr;  // of those in slabs
  int64_t writable_holds = 0;
  int64_t open_holds = 0;
  std::optional<CommError> failure;
  GatherCounts counts;
  std::atomic<int64_t> prefetched_bytes{0};  // by the lane
  bool is_closed = false;                    // the engine is gone, a hold is not
  Lane lane;                                 // last: its thread uses the rest
};

// --- What operators do ---

void GatheredUnits::Unit::pin(Use use) noexcept {
  const std::lock_guard lock(body_.mutex);
  if (use == Use::kWrite && body_.writable_holds == 0) {
    if (forbidden_writes_++ == 0) buffer_.forbid(body_.write_error(*this));
    return;
  }
  ++pins_;
  try {
    body_.use(*this);
  } catch (const std::exception& error) {
    body_.remember(*this, error);
  }
}

void GatheredUnits::Unit::unpin(Use use) noexcept {
  const std::lock_guard lock(body_.mutex);
  if (use == Use::kWrite && forbidden_writes_ > 0) {
    if (--forbidden_writes_ == 0) buffer_.permit();
    return;
  }
  --pins_;
  if (body_.setting.free_eagerly && is_idle() && is_whole()) body_.free(*this);
}

void GatheredUnits::Body::use(Unit& unit) {
  if (unit.own_memory_.defined() || unit.holds_ > 0) {
    if (!unit.is_whole()) make_whole(unit);
    return;
  }
  if (&unit == last && unit.is_whole()) return;
  const bool is_next = &unit != last;
  last = &unit;
  free_idle_slabs(unit);
  if (is_next) drop_prefetches(&unit);
  if (!unit.is_whole()) make_whole(unit);
  if (!is_next || setting.free_eagerly) return;
  const std::optional<size_t> expected = order.visit(phase(), unit.index_);
  if (expected.has_value() && setting.prefetch) prefetch(*units[*expected]);
}

void GatheredUnits::Body::make_whole(Unit& unit) {
  const Unobserved unobserved;
  const TraceSpan span(trace, TraceTrack::kGather, plan[unit.index_].name,
                       plan[unit.index_].layout.bytes());
  if (unit.fetch_ != nullptr) {
    const std::shared_ptr<Work> fetch = std::exchange(unit.fetch_, nullptr);
    at::Tensor memory = std::exchange(unit.fetched_, at::Tensor());
    try {
      fetch->wait();
    } catch (...) {
      give_memory(unit, std::move(memory));
      throw;
    }
    unit.buffer_.attach(std::move(memory));
    ++counts.prefetched;
  } else {
    at::Tensor memory = take_memory(unit);
    try {
      counts.bytes += unit.source_->fetch(memory, source_now());
    } catch (...) {
      give_memory(unit, std::move(memory));
      throw;
    }
    unit.buffer_.attach(std::move(memory));
  }
  ++counts.gathers;
}

void GatheredUnits::Body::free(Unit& unit) {
  const Unobserved unobserved;
  if (!setting.is_inside_backward()) unit.source_->keep_second(unit.buffer_.memory());
  give_memory(unit, unit.buffer_.detach());
  ++counts.frees;
}

void GatheredUnits::Body::free_idle_slabs(const Unit& but) {
  for (const auto& unit : units) {
    if (unit.get() == &but || unit->own_memory_.defined()) continue;
    if (unit->is_whole() && unit->is_idle()) free(*unit);
  }
}

at::Tensor GatheredUnits::Body::take_memory(Unit& unit) {
  const FlatLayout& layout = plan[unit.index_].layout;
  if (unit.own_memory_.defined()) return unit.own_memory_;
  TORCH_CHECK(!setting.strict_slabs || pool.free_slabs(layout.dtype()) > 0, "[fsdp] unit '",
              plan[unit.index_].name, "': got no free slab, expected one of ", pool.slabs(),
              " that are there; operators use more units at once than the memory formula counts. "
              "Join them with a wrap policy, or leave strict_slabs off");
  return pool.acquire(layout.dtype(), layout.numel());
}

void GatheredUnits::Body::give_memory(Unit& unit, at::Tensor memory) {
  if (unit.is_temporary_) {
    unit.is_temporary_ = false;
    meter.remove(MemoryClass::kSlabs, static_cast<int64_t>(memory.nbytes()));
  } else if (!unit.own_memory_.defined()) {
    pool.release(memory);
  } else if (setting.poison_freed) {
    memory.fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

// --- Ahead of time ---

void GatheredUnits::Body::prefetch(Unit& unit) {
  if (unit.is_whole() || unit.fetch_ != nullptr) return;
  if (!unit.own_memory_.defined() && pool.free_slabs(plan[unit.index_].layout.dtype()) == 0) return;
  const Unobserved unobserved;
  unit.fetched_ = take_memory(unit);
  unit.fetch_ = lane.post([this, &unit, memory = unit.fetched_, from = source_now()] {
    const Unobserved in_lane;
    const TraceSpan span(trace, TraceTrack::kGather, plan[unit.index_].name,
                         plan[unit.index_].layout.bytes());
    const int64_t bytes = unit.source_->fetch(memory, from);
    prefetched_bytes += bytes;
  });
}

/// Gives back what was fetched for a use that did not come. Fetches of `but` stay.
void GatheredUnits::Body::drop_prefetches(const Unit* but) {
  for (const auto& unit : units) {
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

UnitSource::From GatheredUnits::Body::source_now() const {
  return setting.is_inside_backward() ? UnitSource::From::kSecond : UnitSource::From::kFirst;
}

AccessOrder::Phase GatheredUnits::Body::phase() const {
  if (setting.is_inside_backward()) return AccessOrder::Phase::kBackward;
  return at::GradMode::is_enabled() ? AccessOrder::Phase::kForward
                                    : AccessOrder::Phase::kForwardWithoutGrad;
}

// --- Failure ---

void GatheredUnits::Body::remember(Unit& unit, const std::exception& error) {
  if (const auto* failed = dynamic_cast<const CommError*>(&error);
      failed != nullptr && !failure.has_value()) {
    failure = *failed;
  }
  // The operator goes on and meets the storage; let that say why it has no data.
  unit.buffer_.set_access_error(text_of(error));
}

std::string GatheredUnits::Body::write_error(const Unit& unit) const {
  const PlannedUnit& planned = plan[unit.index_];
  std::string names;
  constexpr size_t kMostNames = 4;
  for (size_t i = 0; i < planned.parameters.size() && i < kMostNames; ++i) {
    absl::StrAppend(&names, i == 0 ? "'" : ", '", table[planned.parameters[i]].name, "'");
  }
  if (planned.parameters.size() > kMostNames) absl::StrAppend(&names, ", ...");
  return absl::StrCat("[fsdp] unit '", planned.name,
                      "': an operator writes one of its parameters (", names,
                      ") outside engine->modify_parameters(), and the shards of the other ranks "
                      "would not know; write it inside, so that all ranks take the new values");
}

// --- Scopes ---

void GatheredUnits::Body::hold(Unit& unit) {
  if (unit.holds_++ > 0 || unit.is_whole()) return;
  drop_prefetches(nullptr);
  const FlatLayout& layout = plan[unit.index_].layout;
  at::Tensor memory = unit.own_memory_;
  if (!memory.defined()) {
    memory = allocate_private(layout.numel(), layout.dtype());
    meter.add(MemoryClass::kSlabs, static_cast<int64_t>(memory.nbytes()));
    unit.is_temporary_ = true;
  }
  try {
    const TraceSpan span(trace, TraceTrack::kGather, plan[unit.index_].name, layout.bytes());
    counts.bytes += unit.source_->fetch(memory, source_now());
  } catch (...) {
    --unit.holds_;
    give_memory(unit, std::move(memory));
    throw;
  }
  unit.buffer_.attach(std::move(memory));
  ++counts.gathers;
}

void GatheredUnits::Body::release(Unit& unit) {
  if (--unit.holds_ == 0 && unit.pins_ == 0 && unit.is_whole()) free(unit);
}

// --- The object ---

GatheredUnits::GatheredUnits(ProcessGroup& group, const UnitPlan& plan, const ParameterTable& table,
                             const SliceMap& slices, FlatParameters& flat, Setting setting,
                             MemoryMeter& meter, Trace* trace)
    : body_(std::make_shared<Body>(plan, table, std::move(setting), meter, trace)) {
  const bool keeps_whole =
      body_->setting.ranks_after_forward == 1 && slices.degrees().parameters > 1;
  std::map<at::ScalarType, int64_t> units_in_slabs;
  std::vector<AccessObserver::Watched> watched;
  for (size_t index = 0; index < plan.size(); ++index) {
    const PlannedUnit& planned = plan[index];
    auto source =
        std::make_unique<UnitSource>(group, slices, planned.layout, planned.name, flat.shard(index),
                                     body_->setting.ranks_after_forward, meter);
    auto& unit = body_->units.emplace_back(
        std::make_unique<Unit>(*body_, index, flat.full(index), std::move(source)));
    if (planned.kind == UnitKind::kRoot || keeps_whole) {
      unit->own_memory_ = allocate_private(planned.layout.numel(), planned.layout.dtype());
      meter.add(planned.kind == UnitKind::kRoot ? MemoryClass::kRoot : MemoryClass::kSlabs,
                planned.layout.bytes());
    } else {
      body_->pool.reserve(planned.layout.dtype(), planned.layout.numel());
      ++units_in_slabs[planned.layout.dtype()];
    }
    watched.push_back(
        {c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(unit->buffer_.storage()), unit.get()});
  }
  for (const auto& [dtype, units] : units_in_slabs) {
    body_->pool.fill(dtype, std::min<int64_t>(units, 2));
  }
  body_->slabs_planned = body_->pool.slabs();
  observer_ = std::make_unique<AccessObserver>(std::move(watched));
}

GatheredUnits::~GatheredUnits() {
  observer_.reset();
  body_->lane.close();
  const std::lock_guard lock(body_->mutex);
  body_->is_closed = true;
  body_->drop_prefetches(nullptr);
  for (const auto& unit : body_->units) {
    if (unit->is_whole()) body_->free(*unit);
    if (unit->own_memory_.defined()) {
      const bool is_root = body_->plan[unit->index_].kind == UnitKind::kRoot;
      body_->meter.remove(is_root ? MemoryClass::kRoot : MemoryClass::kSlabs,
                          static_cast<int64_t>(unit->own_memory_.nbytes()));
    }
  }
}

void GatheredUnits::free_all() {
  const std::lock_guard lock(body_->mutex);
  body_->drop_prefetches(nullptr);
  for (const auto& unit : body_->units) {
    if (unit->is_whole() && unit->is_idle()) body_->free(*unit);
  }
  body_->last = nullptr;
}

void GatheredUnits::values_changed() {
  const std::lock_guard lock(body_->mutex);
  for (const auto& unit : body_->units) unit->source_->invalidate();
  body_->order.begin();
}

std::shared_ptr<void> GatheredUnits::hold(const std::vector<size_t>& units, HoldMode mode) {
  const Unobserved unobserved;
  const std::shared_ptr<Body> body = body_;
  const std::lock_guard lock(body->mutex);
  size_t held = 0;
  try {
    for (; held < units.size(); ++held) body->hold(*body->units[units[held]]);
  } catch (...) {
    while (held > 0) body->release(*body->units[units[--held]]);
    throw;
  }
  ++body->open_holds;
  if (mode == HoldMode::kWritable) ++body->writable_holds;
  return {body.get(), [body, units, mode](void*) {
            const Unobserved not_observed;
            const std::lock_guard guard(body->mutex);
            --body->open_holds;
            if (mode == HoldMode::kWritable) --body->writable_holds;
            if (body->is_closed) return;
            for (const size_t unit : units) body->release(*body->units[unit]);
          }};
}

std::shared_ptr<void> GatheredUnits::hold_all(HoldMode mode) {
  std::vector<size_t> units(body_->units.size());
  std::iota(units.begin(), units.end(), size_t{0});
  return hold(units, mode);
}

bool GatheredUnits::is_holding() const {
  const std::lock_guard lock(body_->mutex);
  return body_->open_holds > 0;
}

std::optional<CommError> GatheredUnits::failure() const {
  const std::lock_guard lock(body_->mutex);
  return body_->failure;
}

GatherCounts GatheredUnits::counts() const {
  const std::lock_guard lock(body_->mutex);
  GatherCounts counts = body_->counts;
  counts.bytes += body_->prefetched_bytes;
  counts.slabs_grown = body_->pool.slabs() - body_->slabs_planned;
  return counts;
}

}  // namespace tessera
