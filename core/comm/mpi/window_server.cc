// The owner's side of the windows of one group.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/mpi/windows.h"
#include "tessera/window.h"

namespace tessera::internal::mpi {
void Windows::open(int64_t number, at::Tensor own) {
  if (ranks_->has_failed()) return;  // nobody would end it
  Served served{.memory = std::move(own), .readers = {}};
  for (int rank = 0; rank < ranks_->size(); ++rank) {
    if (rank != ranks_->rank()) served.readers.insert(rank);
  }
  served_.insert_or_assign(number, std::move(served));
}

void Windows::close(int64_t number) {
  const auto found = served_.find(number);
  if (found == served_.end() || !found->second.is_open) return;
  found->second.is_open = false;
  Envelope closed = ranks_->envelope(Envelope::Kind::kClosed);
  closed.number = number;
  ranks_->send_to_others(closed);
  drop_unused();
}

void Windows::close_all() {
  std::vector<int64_t> numbers;
  for (const auto& [number, served] : served_) numbers.push_back(number);
  for (const int64_t number : numbers) close(number);
}

void Windows::note_closed(int reader, int64_t number) {
  const auto found = served_.find(number);
  if (found == served_.end()) return;
  found->second.readers.erase(reader);
  drop_unused();
}

void Windows::drop_unused() {
  std::erase_if(served_, [](const auto& entry) {
    return !entry.second.is_open && entry.second.readers.empty();
  });
}

bool Windows::is_asked() const {
  for (const auto& [number, served] : served_) {
    if (!served.readers.empty()) return true;
  }
  return false;
}

void Windows::answer(int reader, const Envelope& request) {
  ReadRequest asked;
  std::memcpy(&asked, request.payload(), sizeof(asked));
  const auto found = served_.find(asked.window);
  if (found == served_.end()) return;  // the group has failed
  Envelope answer = ranks_->envelope(Envelope::Kind::kAnswer);
  answer.number = request.number;
  const at::Tensor& memory = found->second.memory;
  const char* const begin = data_of(memory) + asked.begin_bytes;
  answer.data_bytes = asked.bytes;
  if (asked.is_word != 0) {
    const int64_t word = load_word(begin);
    std::memcpy(answer.payload(), &word, sizeof(word));
    return ranks_->send(answer, reader);
  }
  if (asked.bytes <= static_cast<int64_t>(Envelope::kPayloadBytes)) {
    std::memcpy(answer.payload(), begin, static_cast<size_t>(asked.bytes));
    return ranks_->send(answer, reader);
  }
  World& world = ranks_->world();
  answer.data_tag = world.communicator().draw_tag();
  ranks_->send(answer, reader);
  auto sent = std::make_shared<PairExchange>(world.communicator(), ranks_->world_rank(reader),
                                             answer.data_tag, memory);
  sent->exchange.send_in_pieces(0, begin, asked.bytes);
  world.keep(sent->exchange, sent);
}

}  // namespace tessera::internal::mpi
