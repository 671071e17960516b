#include "tessera/core/sched/stream_join.h"

#include <utility>

namespace tessera::internal {

void StreamJoin::pass() {
  if (device_ == nullptr) return;
  std::shared_ptr<Stream> now = device_->current_stream();
  const std::lock_guard lock(mutex_);
  if (last_ != nullptr && last_->handle() != now->handle()) {
    // The event is made only now, when the stream changes, because one event then covers all uses
    // of the last stream so far. While the stream stays the same, no use needs an event.
    const std::shared_ptr<Event> used = device_->make_event();
    last_->record(*used);
    now->wait(*used);
  }
  last_ = std::move(now);
}

}  // namespace tessera::internal
