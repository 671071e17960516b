#include "tessera/core/comm/shm/mailbox.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/call_mismatch.h"
#include "tessera/core/comm/shm/message_work.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"

namespace tessera::internal::shm {
namespace {

// How long a sleeper trusts that it will be woken before it looks for dead or poisoned peers.
constexpr auto kMailSlice = std::chrono::milliseconds(20);
constexpr int kMailYields = 100;

CallDescriptor descriptor_of(const Collective& message) {
  CallDescriptor call;
  call.sequence = -1;
  call.signature = message.signature();
  call.tag.set(message.tag);
  return call;
}

}  // namespace

Mailbox::Mailbox(Member& member)
    : world_(member.world_ptr()),
      memory_(member.memory()),
      channel_(member.channel()),
      rank_(member.rank()),
      group_(member.group_name()),
      time_out_(member.options().timeout),
      report_after_(member.options().report_after),
      outbox_(world_->arena(), channel_, rank_) {}

Mailbox::~Mailbox() { close(); }

void Mailbox::close() {
  if (!world_->origin().is_here()) return;
  std::unique_ptr<Lane> thread;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return;
    collect();
    is_closed_ = true;
    for (const std::shared_ptr<Sent>& sent : sent_) {
      if (!sent->in_place.defined()) continue;  // the copy stays for the receiver
      uint32_t posted = MessageRecord::kPosted;
      const bool is_withdrawn =
          sent->record->state.compare_exchange_strong(posted, MessageRecord::kWithdrawn);
      // The receiver is reading it right now, and this must not wait for that.
      if (!is_withdrawn) (void)new at::Tensor(sent->in_place);
    }
    thread = std::move(thread_);
  }
  ring(own_slot());
  if (thread != nullptr) thread->close();
}

void Mailbox::check_usable(const Collective& message) {
  throw_if_failed(message.signature(), std::string(message.tag));
}

std::shared_ptr<Work> Mailbox::send(const Collective& message) {
  const at::Tensor& tensor = message.input;
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  auto sent = std::make_shared<Sent>();
  sent->is_buffered = bytes <= ProcessGroup::kBufferedBytes || message.peer == rank_;
  CallDescriptor call = descriptor_of(message);
  const std::shared_ptr<Arena>& arena = world_->arena();
  const std::lock_guard<std::mutex> lock(mutex_);
  check_usable(message);
  progress();
  sent->flight = world_->ring().begin(call.signature, -1, message.tag, group_);
  if (bytes > 0) {
    std::optional<SharedRange> range;
    if (!sent->is_buffered) range = arena->find(tensor.const_data_ptr(), bytes);
    if (range) {
      sent->in_place = tensor;
    } else {
      sent->copy = arena->allocate(bytes);
      std::memcpy(sent->copy, tensor.const_data_ptr(), static_cast<size_t>(bytes));
      range = arena->find(sent->copy, bytes);
    }
    call.source = *range;
  }
  sent->record = &outbox_.post(message.peer, call);
  if (sent->is_buffered) world_->ring().end(sent->flight);
  sent_.push_back(sent);
  return std::make_shared<MessageWork>(shared_from_this(), message, std::move(sent), nullptr);
}

std::shared_ptr<Work> Mailbox::receive(const Collective& message) {
  auto awaited = std::make_shared<Awaited>();
  awaited->call = descriptor_of(message);
  awaited->tensor = message.output;
  const std::lock_guard<std::mutex> lock(mutex_);
  check_usable(message);
  progress();
  awaited->flight = world_->ring().begin(awaited->call.signature, -1, message.tag, group_);
  const auto there = std::find_if(arrived_.begin(), arrived_.end(),
                                  [&](const Arrived& arrived) { return awaited->fits(arrived); });
  auto work = std::make_shared<MessageWork>(shared_from_this(), message, nullptr, awaited);
  if (there != arrived_.end()) {
    const Arrived arrived = *there;
    arrived_.erase(there);
    deliver(*awaited, arrived);
    return work;
  }
  awaited_.push_back(std::move(awaited));
  if (static_cast<int64_t>(message.output.nbytes()) > ProcessGroup::kBufferedBytes &&
      !is_serving_) {
    if (thread_ == nullptr) {
      thread_ = std::make_unique<Lane>(Lane::Mode::kThread, [this] {
        process_ends_ = true;
        ring(own_slot());
      });
    }
    is_serving_ = true;
    thread_->post([this] { serve(); });
  }
  return work;
}

/// Takes what has come for this rank. Under the lock; never waits for a peer.
void Mailbox::progress() {
  collect();
  for (int sender = 0; sender < channel_.size; ++sender) read(sender);
}

/// Drops what receivers have taken.
void Mailbox::collect() {
  for (auto place = sent_.begin(); place != sent_.end();) {
    Sent& sent = **place;
    if (sent.record->state.load(std::memory_order_acquire) != MessageRecord::kTaken) {
      ++place;
      continue;
    }
    if (sent.copy != nullptr) world_->arena()->free(sent.copy);
    sent.in_place = at::Tensor();
    sent.is_taken = true;
    if (!sent.is_buffered) world_->ring().end(sent.flight);
    outbox_.release(*std::exchange(sent.record, nullptr));
    place = sent_.erase(place);
  }
}

MessagePage* Mailbox::first_page(int sender) {
  ChannelSlot& slot = channel_.slot(sender);
  if (slot.has_outbox.load(std::memory_order_acquire) == 0) return nullptr;
  OutboxEntry& entry = reinterpret_cast<OutboxEntry*>(world_->resolve(slot.outbox))[rank_];
  if (entry.has_first.load(std::memory_order_acquire) == 0) return nullptr;
  return reinterpret_cast<MessagePage*>(world_->resolve(entry.first));
}

void Mailbox::read(int sender) {
  Cursor& cursor = cursors_[sender];
  try {
    if (cursor.page == nullptr) cursor.page = first_page(sender);
    while (cursor.page != nullptr) {
      MessagePage& page = *cursor.page;
      const uint32_t count =
          std::min(page.count.load(std::memory_order_acquire), MessagePage::kRecords);
      while (cursor.next < count) arrive({sender, &page.records[cursor.next++]});
      const bool is_read = cursor.next == MessagePage::kRecords;
      if (!is_read || page.has_next.load(std::memory_order_acquire) == 0) return;
      cursor = {reinterpret_cast<MessagePage*>(world_->resolve(page.next)), 0};
      page.left.store(1, std::memory_order_release);
    }
  } catch (const c10::Error&) {
    // Its memory went with it, and so did its messages: is_over() says so.
    if (channel_.slot(sender).left.load(std::memory_order_acquire) != 0) return;
    check_peers();
    if (failure().empty()) throw;
  }
}

void Mailbox::arrive(const Arrived& arrived) {
  const auto place = std::find_if(awaited_.begin(), awaited_.end(),
                                  [&](const auto& awaited) { return awaited->fits(arrived); });
  if (place == awaited_.end()) {
    arrived_.push_back(arrived);
    return;
  }
  const std::shared_ptr<Awaited> awaited = *place;
  awaited_.erase(place);
  deliver(*awaited, arrived);
}

void Mailbox::deliver(Awaited& awaited, const Arrived& arrived) {
  const CallDescriptor& sent = arrived.record->call;
  const CallSignature& call = awaited.call.signature;
  const std::string tag(awaited.call.tag.beginning());
  if (!fits(sent.signature, call)) {
    fail(call, tag,
         message_mismatch(channel_.name_of(rank_), call, channel_.name_of(arrived.sender),
                          sent.signature, tag));
  }
  uint32_t posted = MessageRecord::kPosted;
  const bool is_there =
      arrived.record->state.compare_exchange_strong(posted, MessageRecord::kTaking);
  if (!is_there) fail_as_lost(arrived.sender, call, tag);
  const size_t bytes = awaited.tensor.nbytes();
  try {
    if (bytes > 0) std::memcpy(awaited.tensor.data_ptr(), world_->resolve(sent.source), bytes);
  } catch (const c10::Error&) {
    check_peers();  // a rank's memory goes with it
    throw_if_failed(call, tag);
    throw;
  }
  arrived.record->state.store(MessageRecord::kTaken, std::memory_order_release);
  ring(channel_.slot(arrived.sender));
  awaited.tensor = at::Tensor();
  awaited.sender = arrived.sender;
  world_->ring().end(awaited.flight);
  ring(own_slot());  // another thread of this rank may wait for it
}

/// What the thread does: looks for messages as long as this rank awaits any.
void Mailbox::serve() {
  while (true) {
    uint32_t seen = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      seen = own_slot().mail.load(std::memory_order_acquire);
      bool goes_on = !is_closed_ && !process_ends_ && failure().empty();
      try {
        if (goes_on) progress();
      } catch (const std::exception&) {  // the group has failed: wait() says why
        goes_on = false;
      }
      if (!goes_on || awaited_.empty()) {
        is_serving_ = false;
        return;
      }
    }
    sleep(seen);
  }
}

void Mailbox::sleep(uint32_t seen) {
  ChannelSlot& slot = own_slot();
  slot.mail_sleepers.fetch_add(1, std::memory_order_seq_cst);
  const bool is_slice_over = futex_wait(slot.mail, seen, kMailSlice);
  slot.mail_sleepers.fetch_sub(1, std::memory_order_seq_cst);
  if (is_slice_over) check_peers();
}

/// Whether the message has come or gone; throws if it never will.
bool Mailbox::is_over(MessageWork& work) {
  if (work.is_done()) return true;
  throw_if_failed(work.call(), work.tag());
  if (is_closed_) {
    throw_error(work.call(), work.tag(), "the group was destroyed before this message was through");
  }
  // A sender posts before it leaves, so this order misses nothing.
  const bool has_left = has_peer_left(work.call().peer);
  progress();
  if (work.is_done()) return true;
  if (has_left) fail_as_left(work);
  return false;
}

/// Of kAnySource: whether all others have.
bool Mailbox::has_peer_left(int peer) {
  for (int rank = 0; rank < channel_.size; ++rank) {
    if (peer >= 0 ? rank != peer : rank == rank_) continue;
    if (channel_.slot(rank).left.load(std::memory_order_acquire) == 0) return false;
  }
  return peer >= 0 || channel_.size > 1;
}

void Mailbox::await(MessageWork& work) {
  if (!world_->origin().is_here()) {
    throw_error(work.call(), work.tag(),
                world_->origin().fork_error(absl::StrCat("rank ", world_->rank())));
  }
  const auto start = Clock::now();
  bool is_reported = report_after_.count() <= 0;
  for (int looks = 0;; ++looks) {
    world_->progress().advance();  // Note [Posted calls]
    uint32_t seen = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      seen = own_slot().mail.load(std::memory_order_acquire);
      if (is_over(work)) return;
    }
    if (looks < kMailYields) {  // gives the core to a peer that shares it
      ::sched_yield();
      continue;
    }
    const auto now = Clock::now();
    if (!is_reported && now - start >= report_after_) {
      is_reported = true;
      report_wait(work);
    }
    if (now - start >= time_out_ && !is_excused(work.call().peer)) time_out(work);
    sleep(seen);
  }
}

}  // namespace tessera::internal::shm
