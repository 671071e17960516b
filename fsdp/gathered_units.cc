#include "tessera/fsdp/gathered_units.h"

#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "tessera/core/memory/private_memory.h"
#include "tessera/fsdp/collective_source.h"
#include "tessera/fsdp/window_source.h"

namespace tessera {
std::shared_ptr<ProcessGroup> make_gathering_group(ProcessGroup& group, const SliceMap& slices) {
  if (slices.degrees().parameters == group.size()) return duplicate(group, "gathers");
  return split(group, slices.colors({SliceMap::Axis::kParameters}), "gathers");
}

GatheredUnits::GatheredUnits(ProcessGroup& group, std::shared_ptr<ProcessGroup> gathering,
                             const UnitPlan& plan, const ParameterTable& table,
                             const SliceMap& slices, FlatParameters& flat, ResidencySetting setting,
                             MemoryMeter& meter, Trace* trace)
    : gathering_(std::move(gathering)) {
  const int degree = slices.degrees().parameters;
  const bool is_shared = plan.size() > 0 && flat.whole(0).defined();
  const bool is_collective = gathering_ != nullptr;
  if (plan.size() > 0 && flat.shard(0).device() != group.place()) {
    host_ = std::make_shared<HostShards>(device_at(group.place()));
  }
  WindowSource::SecondShards second{.ranks = setting.ranks_after_forward};
  if (second.ranks > 1 && second.ranks < degree && !is_shared && !is_collective) {
    const at::Tensor stamps = group.allocate(static_cast<int64_t>(plan.size()), at::kLong);
    stamps.zero_();
    stamps_ = group.make_window(stamps, "second shards");
    second.stamps = stamps_.get();
  }
  if (is_collective) {
    setting.allocate = [this](int64_t numel, at::ScalarType dtype) {
      return gathering_->allocate(numel, dtype);
    };
  } else {
    setting.allocate = &allocate_private;
  }
  const bool keeps_whole = setting.ranks_after_forward == 1 && degree > 1;
  residency_ = std::make_shared<Residency>(plan, table, std::move(setting), meter, trace);
  std::vector<AccessObserver::Watched> watched;
  for (size_t index = 0; index < plan.size(); ++index) {
    FreeableBuffer& full = flat.full(index);
    AccessTarget* unit = nullptr;
    if (is_shared) {
      unit = &residency_->add(full, flat.whole(index));
    } else {
      const PlannedUnit& planned = plan[index];
      second.place = static_cast<int64_t>(index);
      std::unique_ptr<UnitSource> source;
      if (is_collective) {
        source =
            std::make_unique<CollectiveSource>(*gathering_, planned.name, flat.shard(index), host_);
      } else {
        source = std::make_unique<WindowSource>(group, slices, planned.layout, planned.name,
                                                flat.shard(index), second, meter);
      }
      unit = &residency_->add(full, std::move(source),
                              planned.kind == UnitKind::kRoot || keeps_whole
                                  ? Residency::Memory::kOwn
                                  : Residency::Memory::kSlab);
    }
    for (size_t part = 0; part < full.size(); ++part) {
      watched.push_back({full.storage(part), {residency_, unit}});
    }
  }
  residency_->fill_slabs();
  observer_ = std::make_unique<AccessObserver>(std::move(watched));
}

GatheredUnits::~GatheredUnits() {
  observer_.reset();
  if (!residency_->is_own_process()) {
    // As it is: threads that a child does not have may be in the middle of it.
    static auto* const abandoned = new std::vector<std::shared_ptr<Residency>>;
    abandoned->push_back(residency_);
    return;
  }
  const std::lock_guard lock(residency_->mutex);
  residency_->close();
}

void GatheredUnits::free_all() {
  const std::lock_guard lock(residency_->mutex);
  residency_->free_all();
}

void GatheredUnits::values_changed() {
  const std::lock_guard lock(residency_->mutex);
  residency_->values_changed();
}

void GatheredUnits::await_copies() {
  const std::lock_guard lock(residency_->mutex);
  if (host_ != nullptr) host_->await();
}

std::shared_ptr<void> GatheredUnits::hold(const std::vector<size_t>& units, HoldMode mode) {
  const bool writable = mode == HoldMode::kWritable;
  const std::lock_guard lock(residency_->mutex);
  size_t held = 0;
  try {
    for (; held < units.size(); ++held) residency_->hold(units[held], writable);
  } catch (...) {
    while (held > 0) residency_->release(units[--held], writable);
    throw;
  }
  return {residency_.get(), [residency = residency_, units, writable](void*) {
            if (!residency->is_own_process()) return;
            const std::lock_guard guard(residency->mutex);
            for (const size_t unit : units) residency->release(unit, writable);
          }};
}

std::shared_ptr<void> GatheredUnits::hold_all(HoldMode mode) {
  std::vector<size_t> units(residency_->size());
  std::iota(units.begin(), units.end(), size_t{0});
  return hold(units, mode);
}

std::optional<CommError> GatheredUnits::failure() const {
  const std::lock_guard lock(residency_->mutex);
  return residency_->failure();
}

int64_t GatheredUnits::history() const {
  const std::lock_guard lock(residency_->mutex);
  return residency_->history();
}

GatherCounts GatheredUnits::counts() const {
  const std::lock_guard lock(residency_->mutex);
  return residency_->counts();
}

}  // namespace tessera
