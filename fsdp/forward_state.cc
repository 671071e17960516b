#include "tessera/fsdp/forward_state.h"

namespace tessera::internal {
namespace {

/// Calls install() without throwing, for destructors.
void put_back(const std::optional<RandomState>& state) noexcept {
  try {
    if (state.has_value()) state->install();
  } catch (...) {  // a generator made the state, so it is valid: only an allocation can fail
  }
}

}  // namespace

// Note [Autocast's cache]
// Until the autocast region ends, autocast keeps the 16-bit copy of each parameter that it has
// cast; after a forward these are copies of the whole model. They would use the memory that
// checkpointing (and splitting parameters) is meant to save, so the forward runs without the cache.
// In the recomputation, a copy cached in the surrounding graph would connect the recomputation to
// that graph, and new copies would outlive the recomputed graph and the next update of the
// parameter. So the cache is cleared before and after the recomputation. During the recomputation
// the cache is used: a parameter used twice is cast once, and its gradients are added in 16 bits,
// as in the model without checkpoints.

AutocastState::AutocastState() : uses_cache_(at::autocast::is_autocast_cache_enabled()) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const at::DeviceType type = at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i];
    devices_[i] = {at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)};
  }
}

void AutocastState::install() const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const at::DeviceType type = at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i];
    at::autocast::set_autocast_enabled(type, devices_[i].is_enabled);
    at::autocast::set_autocast_dtype(type, devices_[i].dtype);
  }
  at::autocast::set_autocast_cache_enabled(uses_cache_);
}

bool AutocastState::is_enabled() const {
  for (const Device& device : devices_) {
    if (device.is_enabled) return true;
  }
  return false;
}

ForwardState::ForwardState(Random use, std::optional<c10::Device> gpu) {
  if (use == Random::kKept) random.emplace(gpu);
}

ForwardScope::ForwardScope(const ForwardState& state) : state_(state) {
  at::autocast::set_autocast_cache_enabled(false);
}

ForwardScope::~ForwardScope() {
  outside_.install();
  if (!is_finished_) put_back(state_.random);
}

ReplayScope::ReplayScope(const ForwardState& state)
    : outside_(state.random ? ForwardState::Random::kKept : ForwardState::Random::kIgnored,
               state.random ? state.random->gpu() : std::nullopt),
      empties_cache_(state.autocast.is_enabled()) {
  if (state.random) state.random->install();
  state.autocast.install();
  // Leaving the outermost autocast region clears the cache, so a region that the function opens
  // must not be the outermost one.
  at::autocast::increment_nesting();
  if (empties_cache_) at::autocast::clear_cache();
}

ReplayScope::~ReplayScope() {
  if (empties_cache_) at::autocast::clear_cache();
  at::autocast::decrement_nesting();
  outside_.autocast.install();
  put_back(outside_.random);
}

}  // namespace tessera::internal
