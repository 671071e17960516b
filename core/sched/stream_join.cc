#include "tessera/core/sched/stream_join.h"

#include <utility>

namespace tessera::internal {

void StreamJoin::pass() {
  if (device_ == nullptr) return;
  std::shared_ptr<Stream> now = device_->current_stream();
  const std::lock_guard lock(mutex_);
  if (last_ != nullptr && last_->handle() != now->handle()) {
    // Recorded only when the stream changes: one event covers all earlier uses, and not every use
    // needs one.
    const std::shared_ptr<Event> used = device_->make_event();
    last_->record(*used);
    now->wait(*used);
  }
  last_ = std::move(now);
}

}  // namespace tessera::internal
