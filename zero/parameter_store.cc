#include "tessera/zero/parameter_store.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

namespace tessera {

ParameterStore::ParameterStore(ProcessGroup& group, const ParameterTable& table,
                               const UnitPlan& plan, const SliceMap& slices, Setting setting,
                               MemoryMeter& meter, Trace* trace)
    : group_(group),
      table_(table),
      plan_(plan),
      masters_(table, plan, slices, meter),
      flat_(
          table, plan, slices, setting.residence,
          [&group](int64_t numel, at::ScalarType dtype) { return group.allocate(numel, dtype); },
          meter),
      publication_(group, plan, slices, flat_, trace) {
  masters_.adopt(flat_);
  if (!flat_.is_split()) return;
  gathered_ = std::make_unique<GatheredUnits>(group, plan, table, slices, flat_,
                                              std::move(setting.gather), meter, trace);
  group_.barrier("parameters split");
}

void ParameterStore::finish() {
  publication_.finish();
  if (gathered_ == nullptr) return;
  if (const std::optional<CommError> failure = gathered_->failure()) throw CommError(*failure);
}

void ParameterStore::free_all() {
  if (gathered_ != nullptr) gathered_->free_all();
}

void ParameterStore::publish(const std::vector<uint8_t>& used) {
  std::vector<size_t> updated;
  for (size_t unit = 0; unit < plan_.trainable_size(); ++unit) {
    const std::vector<size_t>& members = plan_[unit].parameters;
    if (std::none_of(members.begin(), members.end(),
                     [&used](size_t index) { return used[index] != 0; })) {
      continue;
    }
    masters_.store(unit, flat_);
    updated.push_back(unit);
  }
  if (publication_.is_needed()) publication_.start(updated);
  let_read();
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i] != 0) flat_.bump_version(i);
  }
  flat_.accept();
}

void ParameterStore::announce() {
  let_read();
  for (size_t i = 0; i < table_.size(); ++i) flat_.bump_version(i);
  flat_.accept();
}

/// Shards have their new values on all ranks.
void ParameterStore::let_read() {
  if (gathered_ == nullptr) return;
  gathered_->values_changed();
  group_.barrier("parameters published");
}

std::shared_ptr<void> ParameterStore::hold_all(GatheredUnits::HoldMode mode) {
  finish();
  return gathered_ == nullptr ? nullptr : gathered_->hold_all(mode);
}

std::shared_ptr<void> ParameterStore::hold(const std::vector<size_t>& units) {
  finish();
  return gathered_ == nullptr ? nullptr
                              : gathered_->hold(units, GatheredUnits::HoldMode::kReadOnly);
}

std::vector<at::Tensor> ParameterStore::wholes() const {
  std::vector<at::Tensor> wholes;
  for (size_t unit = 0; unit < plan_.size(); ++unit) wholes.push_back(flat_.full(unit).memory());
  return wholes;
}

void ParameterStore::take_wholes() {
  const at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < plan_.size(); ++unit) {
    if (flat_.is_split()) {
      const Range range = flat_.shard_range(unit);
      flat_.shard(unit).copy_(flat_.full(unit).memory().narrow(0, range.begin, range.numel));
    }
    if (unit < plan_.trainable_size()) masters_.load(unit, flat_);
  }
}

}  // namespace tessera
