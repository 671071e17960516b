#include "tessera/core/comm/mpi/exchange.h"

#include <algorithm>
#include <set>

#include <absl/strings/str_cat.h>

namespace tessera::internal::mpi {

Exchange::Exchange(Communicator& communicator, const std::vector<int>& world_ranks, int own_tag)
    : communicator_(communicator),
      world_ranks_(world_ranks),
      own_tag_(own_tag),
      tags_(world_ranks.size()) {}

void Exchange::send(int to, const char* data, int64_t bytes, int64_t most) {
  const int world_rank = world_ranks_[static_cast<size_t>(to)];
  for (int64_t begin = 0; begin < bytes; begin += most) {
    const auto length = static_cast<size_t>(std::min(most, bytes - begin));
    Handle request = 0;
    const int code = communicator_.calls().send(data + begin, length, world_rank, own_tag_,
                                                communicator_.comm(), &request);
    if (code != 0) communicator_.check(code, absl::StrCat("MPI_Isend to rank ", world_rank));
    open_.push_back({request, to, /*receives=*/false, step_});
  }
}

void Exchange::receive(int from, char* data, int64_t bytes, int64_t most) {
  const auto index = static_cast<size_t>(from);
  for (int64_t begin = 0; begin < bytes; begin += most) {
    const auto length = static_cast<size_t>(std::min(most, bytes - begin));
    Handle request = 0;
    const int code = communicator_.calls().receive(data + begin, length, world_ranks_[index],
                                                   tags_[index], communicator_.comm(), &request);
    communicator_.check(code, "MPI_Irecv");
    open_.push_back({request, from, /*receives=*/true, step_});
  }
}

/// Tests the messages in the order in which they began, which is their order in open_, until one
/// has not completed. Testing one message lets MPI advance all of them.
bool Exchange::is_over_but_for(int64_t steps) {
  while (!open_.empty() && communicator_.is_over(open_.front().request)) open_.pop_front();
  return open_.empty() || open_.front().step > step_ - steps;
}

void Exchange::cancel() {
  for (Message& message : open_) {
    if (message.receives) communicator_.calls().cancel(&message.request);
  }
}

std::vector<int> Exchange::open_ranks() {
  std::erase_if(open_, [this](Message& message) { return communicator_.is_over(message.request); });
  std::set<int> ranks;
  for (const Message& message : open_) ranks.insert(message.rank);
  return {ranks.begin(), ranks.end()};
}

}  // namespace tessera::internal::mpi
