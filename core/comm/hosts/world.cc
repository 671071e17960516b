#include "tessera/core/comm/hosts/world.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/hosts/member.h"

namespace tessera::internal::hosts {

World::World(ProcessGroup& flat, ProcessGroup& inside, std::shared_ptr<FlightRing> flights)
    : of_all_(duplicate(flat, "hosts: failures")),
      of_host_(duplicate(inside, "hosts: failures")),
      host_ranks_(host_ranks_of(inside)),
      flights_(std::move(flights)) {}

World::~World() {
  const bool is_busy = std::any_of(retired_.begin(), retired_.end(),
                                   [](auto& member) { return !member->is_idle(); });
  if (is_busy) fail_by_leaving();
}

std::string World::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

std::string World::fail(std::string_view cause) noexcept {
  if (!origin_.is_here()) return "";  // the lock may be held by nobody
  try {
    const auto host = host_ranks_.lock();
    std::string first = host == nullptr ? "" : host->failure();  // of which this may have come
    if (first.empty()) first = cause.empty() ? "no cause given" : std::string(cause);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (failure_.empty()) failure_ = first;
      first = failure_;
    }
    of_all_->abort(first);
    of_host_->abort(first);
    return first;
  } catch (...) {  // out of memory: the others' time-out
    return "";
  }
}

void World::fail_by_unwinding() noexcept {
  char text[80];
  std::snprintf(text, sizeof(text), "rank %d left while an exception unwound", rank());
  fail(text);
}

void World::fail_by_leaving() noexcept {
  if (!origin_.is_here()) return;
  char text[80];
  std::snprintf(text, sizeof(text), "rank %d left while a collective of its ran", rank());
  fail(text);
}

void World::retire(std::unique_ptr<Member> member) {
  if (!origin_.is_here()) return;  // it has no threads here, and the lock may be held by nobody
  std::vector<std::unique_ptr<Member>> over;  // destroyed without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  retired_.push_back(std::move(member));
  const auto first_over = std::partition(retired_.begin(), retired_.end(),
                                         [](const auto& one) { return !one->is_idle(); });
  std::move(first_over, retired_.end(), std::back_inserter(over));
  retired_.erase(first_over, retired_.end());
}

}  // namespace tessera::internal::hosts
