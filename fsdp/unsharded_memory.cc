#include "tessera/fsdp/unsharded_memory.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <c10/util/Exception.h>

namespace tessera::internal {

UnshardedMemory::UnshardedMemory(const UnitPlan& plan, BufferPool::Allocate allocate,
                                 Setting setting, MemoryMeter& meter)
    : plan_(plan),
      allocate_(std::move(allocate)),
      setting_(setting),
      meter_(meter),
      pool_(allocate_, meter, MemoryClass::kUnshardedParameters,
            setting.poison_freed ? BufferPool::OnRelease::kPoison : BufferPool::OnRelease::kKeep) {}

void UnshardedMemory::add_in_buffers() {
  const FlatLayout& layout = plan_[places_.size()].layout;
  pool_.reserve(layout.dtype(), layout.numel());
  places_.emplace_back();
}

void UnshardedMemory::add_in_own() {
  places_.emplace_back();
  make_own(places_.size() - 1);
}

void UnshardedMemory::add_shared(at::Tensor whole) {
  places_.push_back({.own = std::move(whole), .is_shared = true});
}

void UnshardedMemory::fill_buffers() {
  constexpr int64_t kSteadyBuffers = 2;
  std::map<at::ScalarType, int64_t> units;
  for (size_t unit = 0; unit < places_.size(); ++unit) {
    if (!has_own(unit)) ++units[plan_[unit].layout.dtype()];
  }
  for (const auto& [dtype, count] : units) pool_.fill(dtype, std::min(count, kSteadyBuffers));
  buffers_planned_ = pool_.buffers();
}

bool UnshardedMemory::is_at_hand(size_t unit) const {
  return has_own(unit) || pool_.free_buffers(plan_[unit].layout.dtype()) > 0;
}

at::Tensor UnshardedMemory::take(size_t unit) {
  if (has_own(unit)) return places_[unit].own;
  const FlatLayout& layout = plan_[unit].layout;
  TORCH_CHECK(!setting_.fixed_unsharded_buffers || pool_.free_buffers(layout.dtype()) > 0,
              "[fsdp] unit '", plan_[unit].name,
              "': got no free unsharded-parameter buffer, expected one of ", pool_.buffers(),
              " that are there; operators use more units at once than the memory formula counts. "
              "Join them with a wrap policy, or leave fixed_unsharded_buffers off");
  return pool_.acquire(layout.dtype(), layout.numel());
}

at::Tensor UnshardedMemory::take_another(size_t unit) {
  if (has_own(unit)) make_own(unit);
  return take(unit);
}

void UnshardedMemory::make_own(size_t unit) {
  const FlatLayout& layout = plan_[unit].layout;
  places_[unit].own = allocate_(layout.numel(), layout.dtype());
  meter_.add(own_class(unit), layout.bytes());
}

at::Tensor UnshardedMemory::take_temporary(size_t unit) {
  const FlatLayout& layout = plan_[unit].layout;
  at::Tensor memory = allocate_(layout.numel(), layout.dtype());
  meter_.add(MemoryClass::kUnshardedParameters, static_cast<int64_t>(memory.nbytes()));
  return memory;
}

void UnshardedMemory::give(size_t unit, const at::Tensor& memory, bool is_temporary) {
  if (forget(unit, memory, is_temporary)) return;
  if (!has_own(unit)) {
    pool_.release(memory);
  } else if (setting_.poison_freed && !places_[unit].is_shared) {
    memory.fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

bool UnshardedMemory::forget(size_t unit, const at::Tensor& memory, bool is_temporary) {
  const bool is_replaced = has_own(unit) && !memory.is_same(places_[unit].own);
  if (!is_temporary && !is_replaced) return false;
  meter_.remove(is_temporary ? MemoryClass::kUnshardedParameters : own_class(unit),
                static_cast<int64_t>(memory.nbytes()));
  return true;
}

MemoryClass UnshardedMemory::own_class(size_t unit) const {
  return plan_[unit].kind == UnitKind::kRoot ? MemoryClass::kRoot
                                             : MemoryClass::kUnshardedParameters;
}

void UnshardedMemory::close() {
  for (size_t unit = 0; unit < places_.size(); ++unit) {
    if (has_own(unit) && !places_[unit].is_shared) {
      meter_.remove(own_class(unit), static_cast<int64_t>(places_[unit].own.nbytes()));
    }
    places_[unit].own.reset();
  }
  pool_.close();
}

}  // namespace tessera::internal
