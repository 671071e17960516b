#include "tessera/core/comm/hosts/operation.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/time_out.h"

namespace tessera::internal::hosts {

Operation::Operation(Collective collective, std::string group, int64_t sequence, int rank,
                     std::shared_ptr<FlightRing> flights)
    : tag_(collective.tag),
      collective_(std::move(collective)),
      context_{to_string(collective_.op), std::move(group), sequence, rank, tag_},
      flight_(std::move(flights), collective_.signature(), sequence, tag_,
              absl::StrCat(context_.group, " of hosts")) {
  collective_.tag = tag_;  // the caller's may go
}

bool Operation::is_completed() {
  if (!origin_.is_here()) return true;  // for wait() throws
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_over_;
}

void Operation::wait() {
  if (!origin_.is_here()) {
    throw CommError(context_, origin_.fork_error(absl::StrCat("rank ", context_.rank)));
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return is_over_; });
  if (cause_.has_value()) throw CommError(context_, *cause_);
}

bool Operation::wait_for(std::chrono::milliseconds longest) {
  if (!origin_.is_here()) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  return ended_.wait_for(lock, bounded(longest), [this] { return is_over_; });
}

bool Operation::is_open_on(const Collective& other) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !is_over_ && share_memory(collective_, other);
}

void Operation::end(std::optional<std::string> cause) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_over_) return;
    is_over_ = true;
    cause_ = std::move(cause);
    collective_.output = at::Tensor();  // before anyone sees that it is over
    collective_.input = at::Tensor();
  }
  ended_.notify_all();
}

}  // namespace tessera::internal::hosts
