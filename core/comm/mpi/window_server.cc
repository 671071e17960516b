#include "tessera/core/comm/mpi/window_server.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/window.h"

namespace tessera::internal::mpi {
namespace {

/// Data on its way to a reader. The memory stays as long.
struct Sent {
  Sent(Communicator& communicator, int to, int tag, at::Tensor memory, const char* begin,
       int64_t bytes)
      : ranks{to}, memory(std::move(memory)), exchange(communicator, ranks, tag) {
    exchange.send_in_pieces(0, begin, bytes);
  }
  const std::vector<int> ranks;
  const at::Tensor memory;
  Exchange exchange;
};

}  // namespace

void WindowServer::open(int64_t window, at::Tensor memory) {
  Served served{.memory = std::move(memory), .readers = {}};
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    if (rank != ranks_.rank()) served.readers.insert(rank);
  }
  windows_.insert_or_assign(window, std::move(served));
}

void WindowServer::close(int64_t window) {
  const auto found = windows_.find(window);
  if (found == windows_.end() || !found->second.is_open) return;
  found->second.is_open = false;
  Envelope closed = ranks_.envelope(Envelope::Kind::kClosed);
  closed.number = window;
  ranks_.send_to_others(closed);
  drop_unused();
}

void WindowServer::close_all() {
  std::vector<int64_t> numbers;
  for (const auto& [number, served] : windows_) numbers.push_back(number);
  for (const int64_t number : numbers) close(number);
}

void WindowServer::note_closed(int reader, int64_t window) {
  const auto found = windows_.find(window);
  if (found == windows_.end()) return;
  found->second.readers.erase(reader);
  drop_unused();
}

void WindowServer::note_ended(int reader) {
  for (auto& [number, served] : windows_) served.readers.erase(reader);
  drop_unused();
}

void WindowServer::drop_unused() {
  std::erase_if(windows_, [](const auto& entry) {
    return !entry.second.is_open && entry.second.readers.empty();
  });
}

bool WindowServer::is_asked() const {
  for (const auto& [number, served] : windows_) {
    if (!served.readers.empty()) return true;
  }
  return false;
}

void WindowServer::refuse(int reader, const Envelope& request) {
  Envelope refusal = ranks_.envelope(Envelope::Kind::kRefused);
  refusal.number = request.number;
  ranks_.send(refusal, reader);
}

void WindowServer::answer(int reader, const Envelope& request) {
  ReadRequest asked;
  std::memcpy(&asked, request.payload(), sizeof(asked));
  const auto found = windows_.find(asked.window);
  if (found == windows_.end()) return refuse(reader, request);
  const at::Tensor& memory = found->second.memory;
  const auto size = static_cast<int64_t>(memory.nbytes());
  const bool is_inside = asked.begin_bytes >= 0 && asked.begin_bytes <= size && asked.bytes > 0 &&
                         asked.bytes <= size - asked.begin_bytes;
  constexpr auto kWord = static_cast<int64_t>(sizeof(int64_t));
  const bool is_word = asked.bytes == kWord && asked.begin_bytes % kWord == 0;
  if (!is_inside || (asked.is_word != 0 && !is_word)) return refuse(reader, request);

  const char* const begin = data_of(memory) + asked.begin_bytes;
  Envelope answer = ranks_.envelope(Envelope::Kind::kAnswer);
  answer.number = request.number;
  answer.data_bytes = asked.bytes;
  if (asked.is_word != 0) {
    const int64_t word = load_word(begin);
    std::memcpy(answer.payload(), &word, sizeof(word));
    return ranks_.send(answer, reader);
  }
  if (asked.bytes <= static_cast<int64_t>(Envelope::kPayloadBytes)) {
    std::memcpy(answer.payload(), begin, static_cast<size_t>(asked.bytes));
    return ranks_.send(answer, reader);
  }
  World& world = ranks_.world();
  answer.data_tag = world.communicator().draw_tag();
  ranks_.send(answer, reader);
  auto sent = std::make_shared<Sent>(world.communicator(), ranks_.world_rank(reader),
                                     answer.data_tag, memory, begin, asked.bytes);
  world.keep(sent->exchange, sent);
}

}  // namespace tessera::internal::mpi
