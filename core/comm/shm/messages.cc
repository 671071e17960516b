#include <algorithm>
#include <atomic>
#include <iterator>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/shm/link.h"

namespace tessera::internal::shm {

// Note [Messages]
// ~~~~~~~~~~~~~~~
// A message involves only its sender and its receiver. The sender writes a record into its outbox,
// which lies in its own arena, and rings the receiver's bell. An outbox has one list of pages per
// receiver; the receiver finds this list through the sender's ChannelSlot. The receiver looks
// through its senders' lists, copies the data that it wants out of the sender's arena, marks the
// record as taken and rings the sender's bell. So neither rank needs the other's thread.
//
// The sender copies tensors of up to ProcessGroup::kBufferedBytes into its arena, and is done. A
// larger tensor stays in place if it lies in the arena, and is copied there otherwise. A copy is
// freed after the receiver has taken it. A page is freed after all its records were taken and the
// receiver has moved on to the next page. Copies and pages that were not taken stay, because the
// receiver may still read them.

/// One message, in shared memory. The sender writes it; both sides write `state`.
struct MessageRecord {
  /// kReleased: taken, and no longer used by the sender.
  enum State : uint32_t { kPosted, kTaking, kTaken, kWithdrawn, kReleased };

  std::atomic<uint32_t> state;
  CallRecord call;
  SharedRange source;
};

/// A part of the list of messages from one rank to another.
struct MessagePage {
  static constexpr uint32_t kRecords = 16;

  std::atomic<uint32_t> count;     // posted records
  std::atomic<uint32_t> has_next;  // 1 once `next` is set, when all records are used
  std::atomic<uint32_t> left;      // 1 once the receiver has read `next`
  SharedRange next;
  MessageRecord records[kRecords];

  /// Returns true if neither side uses the page any more. For the sender only.
  bool is_over() const {
    const auto is_released = [](const MessageRecord& record) {
      return record.state.load(std::memory_order_relaxed) == MessageRecord::kReleased;
    };
    return left.load(std::memory_order_acquire) == 1 &&
           std::all_of(std::begin(records), std::end(records), is_released);
  }
};
static_assert(sizeof(MessagePage) <= kPageBytes);

/// This rank's outbox in one group. Used under the Member's lock.
class Outbox {
 public:
  explicit Outbox(Link& link) : world_(link.world()), channel_(link.channel()) {
    const int64_t bytes = static_cast<int64_t>(sizeof(MessagePage)) * link.size();
    auto* const first = reinterpret_cast<MessagePage*>(world_.arena()->allocate(bytes));
    for (int receiver = 0; receiver < link.size(); ++receiver) {
      last_.push_back(new (first + receiver) MessagePage());
    }
    ChannelSlot& slot = channel_.slot(link.rank());
    slot.outbox = *world_.arena()->find(first, bytes);
    slot.has_outbox.store(1, std::memory_order_release);
  }
  /// Frees the pages that no receiver reads any more. Receivers may still read the other pages,
  /// such as the first and the last page of each list.
  ~Outbox() { collect(); }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  /// Posts a message and wakes its receiver. The returned record stays valid until its state is
  /// kReleased.
  MessageRecord& post(int receiver, const CallRecord& call, const SharedRange& source) {
    collect();
    MessagePage*& page = last_[static_cast<size_t>(receiver)];
    uint32_t number = page->count.load(std::memory_order_relaxed);
    if (number == MessagePage::kRecords) {
      page = add_page(*page);
      number = 0;
    }
    MessageRecord& record = page->records[number];
    record.call = call;
    record.source = source;
    record.state.store(MessageRecord::kPosted, std::memory_order_relaxed);
    page->count.store(number + 1, std::memory_order_seq_cst);
    world_.bell_of(channel_.slot(receiver).world_rank).ring();
    return record;
  }

 private:
  /// Makes a page and appends it to the list whose last page is `last`. Returns the new page.
  MessagePage* add_page(MessagePage& last) {
    auto* const made = new (world_.arena()->allocate(sizeof(MessagePage))) MessagePage();
    pages_.push_back(made);
    last.next = *world_.arena()->find(made, sizeof(MessagePage));
    last.has_next.store(1, std::memory_order_release);
    return made;
  }

  /// Frees the pages that neither side uses any more.
  void collect() {
    std::erase_if(pages_, [this](MessagePage* page) {
      const bool is_over = page->is_over();
      if (is_over) world_.arena()->free(reinterpret_cast<char*>(page));
      return is_over;
    });
  }

  World& world_;
  Channel& channel_;
  std::vector<MessagePage*> last_;   // the last page of each list, by receiver
  std::vector<MessagePage*> pages_;  // pages to free later: all but the first of each list
};

namespace {

/// A message that this rank has sent and its receiver may not have taken yet. The destructor
/// withdraws a message that is sent in place; a copy stays, because the receiver may read it later.
class Sent final : public Transfer {
 public:
  Sent(Link& link, Outbox& outbox, const Call& call)
      : link_(link), to_(call.record().signature.peer) {
    const at::Tensor& tensor = call.collective().input;
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
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
    // If the receiver has begun to read the tensor, the tensor is kept alive, because the
    // destructor must not wait for the receiver.
    if (!is_withdrawn) link_.world().progress().keep(std::move(in_place_));
  }

  State advance() override {
    if (record_ == nullptr) return State::kOver;
    if (record_->state.load(std::memory_order_acquire) != MessageRecord::kTaken) {
      return State::kMoving;
    }
    if (copy_ != nullptr) link_.world().arena()->free(copy_);
    std::exchange(record_, nullptr)->state.store(MessageRecord::kReleased);
    return State::kOver;
  }
  std::vector<int> awaited() override { return {to_}; }

 private:
  Link& link_;
  const int to_;
  MessageRecord* record_ = nullptr;
  char* copy_ = nullptr;  // in the arena
  at::Tensor in_place_;
};

}  // namespace

std::unique_ptr<Transfer> Link::send(const Call& call) {
  if (outbox_ == nullptr) outbox_ = std::make_shared<Outbox>(*this);
  drop_taken();
  auto sent = std::make_unique<Sent>(*this, *outbox_, call);
  if (static_cast<int64_t>(call.collective().input.nbytes()) > ProcessGroup::kBufferedBytes) {
    return sent;
  }
  sent_.push_back(std::move(sent));
  return nullptr;
}

/// Frees the copies that receivers have taken.
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
  wake();  // another thread of this rank may wait for the message
  return nullptr;
}

std::optional<Arrival> Link::next_arrival() {
  for (int i = 0; i < size(); ++i) {
    const int sender = next_sender_;
    if (std::optional<Arrival> arrival = next_arrival_from(sender)) return arrival;
    next_sender_ = (next_sender_ + 1) % size();
  }
  return std::nullopt;
}

std::optional<Arrival> Link::next_arrival_from(int sender) {
  if (sender == rank_) return std::nullopt;
  Cursor& cursor = cursors_[static_cast<size_t>(sender)];
  try {
    const ChannelSlot& slot = channel_.slot(sender);
    if (cursor.page == nullptr && slot.has_outbox.load(std::memory_order_acquire) != 0) {
      cursor.page = reinterpret_cast<MessagePage*>(resolve(slot.outbox)) + rank_;
    }
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
    // The memory cannot be mapped. If the sender has left the group, this only means that its
    // process has ended, and its messages are gone.
    if (!has_left(sender)) throw;
  }
  return std::nullopt;
}

}  // namespace tessera::internal::shm
