#include "tessera/zero/parameters/shown_average.h"

#include <cstdint>
#include <vector>

#include "tessera/core/device/device.h"

namespace tessera::internal {

std::unique_ptr<FlatAverage> make_average(const Options& options, ParameterStore& store,
                                          const ProcessGroup& group) {
  if (!options.average.has_value()) return nullptr;
  AllocateState allocate;
  if (options.offload != Offload::kNone) {
    allocate = [device = device_at(group.device())](int64_t numel, at::ScalarType dtype) {
      return device->allocate_on_host(numel, dtype);
    };
  }
  return std::make_unique<FlatAverage>(*options.average, store.masters().values(), allocate);
}

void ShownAverage::show() {
  store_.begin_writing();
  MasterValues& masters = store_.masters();
  for (size_t unit = 0; unit < plan_.trainable_size(); ++unit) {
    if (masters.has_copy(unit)) {
      masters.show(unit, average_.average(unit), store_.flat());
    } else {
      average_.swap(unit, masters.values()[unit]);
    }
  }
  announce();
}

void ShownAverage::hide() {
  store_.begin_writing();
  MasterValues& masters = store_.masters();
  for (size_t unit = 0; unit < plan_.trainable_size(); ++unit) {
    if (masters.has_copy(unit)) {
      masters.store(unit, store_.flat());
    } else {
      average_.swap(unit, masters.values()[unit]);
    }
  }
  announce();
}

/// Lets all ranks see this rank's new slices.
void ShownAverage::announce() {
  std::vector<uint8_t> trainable;
  for (const Parameter& parameter : table_) trainable.push_back(parameter.is_trainable ? 1 : 0);
  store_.show_updates(trainable);
}

}  // namespace tessera::internal
