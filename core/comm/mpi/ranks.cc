#include "tessera/core/comm/mpi/ranks.h"

#include <algorithm>
#include <utility>

namespace tessera::internal::mpi {

Ranks::Ranks(std::shared_ptr<World> world, uint64_t key, std::vector<int> world_ranks, int rank)
    : world_(std::move(world)),
      key_(key),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      known_(world_ranks_.size()) {}

int Ranks::rank_of(int world_rank) const {
  const auto found = std::lower_bound(world_ranks_.begin(), world_ranks_.end(), world_rank);
  if (found == world_ranks_.end() || *found != world_rank) return -1;
  return static_cast<int>(found - world_ranks_.begin());
}

Failure Ranks::failure_of_group() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

Failure Ranks::failure() const {
  Failure failure = failure_of_group();
  if (failure.cause.empty()) {
    failure.cause = world_->failure();
    const int author = world_->author_of_failure();
    if (author >= 0) failure.author = rank_of(author) < 0 ? Failure::kOutsider : rank_of(author);
  }
  if (ends_at_once_) failure = {.cause = failure.cause};
  return failure;
}

bool Ranks::set_failure(const Failure& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.cause.empty()) return false;
  failure_ = failure;
  has_failed_ = true;
  return true;
}

Envelope Ranks::envelope(Envelope::Kind kind) const {
  Envelope made;
  made.kind = kind;
  made.group = key_;
  return made;
}

void Ranks::tell_failure(const Failure& failure) const {
  Envelope told = envelope(Envelope::Kind::kFailed);
  told.number = failure.calls;
  told.set_cause(failure.cause);
  send_to_others(told);
}

void Ranks::send_to_others(const Envelope& envelope) const {
  for (int peer = 1; peer < size(); ++peer) send(envelope, (rank_ + peer) % size());
}

}  // namespace tessera::internal::mpi
