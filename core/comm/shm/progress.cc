#include "tessera/core/comm/shm/progress.h"

#include <algorithm>
#include <utility>

namespace tessera::internal::shm {

void Progress::add(Source& source) {
  const std::lock_guard lock(mutex_);
  sources_.push_back(&source);
}

void Progress::remove(Source& source) {
  const std::lock_guard lock(mutex_);
  sources_.erase(std::remove(sources_.begin(), sources_.end(), &source), sources_.end());
}

void Progress::advance_sources() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (Source* source : sources_) source->advance();
}

void Progress::keep(at::Tensor tensor) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(tensor));
}

}  // namespace tessera::internal::shm
