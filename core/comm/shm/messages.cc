// The messages of a link: Note [Messages].
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/shm/link.h"

namespace tessera::internal::shm {
namespace {

/// A message that this rank has sent, until its receiver has taken it. One that goes with it is
/// withdrawn, but a copy stays for a receiver that may look there later.
class Sent final : public Transfer {
 public:
  Sent(Link& link, Outbox& outbox, const Call& call) : link_(link), outbox_(outbox) {
    const at::Tensor& tensor = call.collective().input;
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    to_ = call.record().signature.peer;
    std::optional<SharedRange> source;
    if (bytes > ProcessGroup::kBufferedBytes) source = link.find(tensor.const_data_ptr(), bytes);
    if (source.has_value()) {
      in_place_ = tensor;
    } else if (bytes > 0) {
      copy_ = link.world().arena()->allocate(bytes);
      copy_bytes(copy_, data_of(tensor), bytes);
      source = link.find(copy_, bytes);
    }
    record_ = &outbox.post(to_, call.record(), source.value_or(SharedRange()));
  }

  ~Sent() override {
    if (record_ == nullptr || !in_place_.defined()) return;
    uint32_t posted = MessageRecord::kPosted;
    const bool is_withdrawn =
        record_->state.compare_exchange_strong(posted, MessageRecord::kWithdrawn);
    // The receiver is reading it right now, and this must not wait for that.
    if (!is_withdrawn) link_.world().progress().keep(std::move(in_place_));
  }

  State advance() override {
    if (record_ == nullptr) return State::kOver;
    if (record_->state.load(std::memory_order_acquire) != MessageRecord::kTaken) {
      return State::kMoving;
    }
    if (copy_ != nullptr) link_.world().arena()->free(copy_);
    outbox_.release(*std::exchange(record_, nullptr));
    return State::kOver;
  }
  std::vector<int> awaited() override { return {to_}; }

 private:
  Link& link_;
  Outbox& outbox_;
  int to_ = 0;
  MessageRecord* record_ = nullptr;
  char* copy_ = nullptr;  // in the arena
  at::Tensor in_place_;
};

/// A message that has been received.
class Received final : public Transfer {
 public:
  State advance() override { return State::kOver; }
  std::vector<int> awaited() override { return {}; }
};

}  // namespace

std::unique_ptr<Transfer> Link::send(const Call& call) {
  if (!outbox_.has_value()) outbox_.emplace(world_, channel_, rank_);
  drop_taken();
  auto sent = std::make_unique<Sent>(*this, *outbox_, call);
  if (static_cast<int64_t>(call.collective().input.nbytes()) > ProcessGroup::kBufferedBytes) {
    return sent;
  }
  sent_.push_back(std::move(sent));
  return nullptr;
}

/// Frees what receivers have taken.
void Link::drop_taken() {
  sent_.remove_if(
      [](const auto& transfer) { return transfer->advance() == Transfer::State::kOver; });
}

std::unique_ptr<Transfer> Link::receive(const Arrival& arrival, const Call& call) {
  auto& record = *static_cast<MessageRecord*>(arrival.place);
  uint32_t posted = MessageRecord::kPosted;
  if (!record.state.compare_exchange_strong(posted, MessageRecord::kTaking)) {
    throw Fault{absl::StrCat(name_of(arrival.from), " left the group before its message '",
                             call.tag(), "' was received"),
                arrival.from};
  }
  const at::Tensor& output = call.collective().output;
  const auto bytes = static_cast<int64_t>(output.nbytes());
  if (bytes > 0) copy_bytes(data_of(output), resolve(record.source), bytes);
  record.state.store(MessageRecord::kTaken, std::memory_order_seq_cst);
  world_->bell_of(world_rank(arrival.from)).ring();
  wake();  // another thread of this rank may wait for it
  return std::make_unique<Received>();
}

std::optional<Arrival> Link::next_arrival() {
  for (int i = 0; i < size(); ++i) {
    const int sender = next_sender_;
    if (std::optional<Arrival> arrival = next_arrival_from(sender)) return arrival;
    next_sender_ = (next_sender_ + 1) % size();
  }
  return std::nullopt;
}

MessagePage* Link::first_page(int sender) {
  ChannelSlot& slot = channel_.slot(sender);
  if (slot.has_outbox.load(std::memory_order_acquire) == 0) return nullptr;
  OutboxEntry& entry = reinterpret_cast<OutboxEntry*>(resolve(slot.outbox))[rank_];
  if (entry.has_first.load(std::memory_order_acquire) == 0) return nullptr;
  return reinterpret_cast<MessagePage*>(resolve(entry.first));
}

std::optional<Arrival> Link::next_arrival_from(int sender) {
  if (sender == rank_) return std::nullopt;
  Cursor& cursor = cursors_[static_cast<size_t>(sender)];
  try {
    if (cursor.page == nullptr) cursor.page = first_page(sender);
    while (cursor.page != nullptr) {
      MessagePage& page = *cursor.page;
      if (cursor.next < page.count.load(std::memory_order_acquire)) {
        MessageRecord& record = page.records[cursor.next++];
        return Arrival{sender, record.call, &record};
      }
      const bool is_read = cursor.next == MessagePage::kRecords;
      if (!is_read || page.has_next.load(std::memory_order_acquire) == 0) break;
      cursor = {reinterpret_cast<MessagePage*>(resolve(page.next)), 0};
      page.left.store(1, std::memory_order_release);
    }
  } catch (const c10::Error&) {
    // Its memory went with it, and so did its messages.
    if (!has_left(sender)) throw;
  }
  return std::nullopt;
}

}  // namespace tessera::internal::shm
