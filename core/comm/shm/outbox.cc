#include "tessera/core/comm/shm/outbox.h"

#include <iterator>
#include <new>
#include <utility>

namespace tessera::internal::shm {

Outbox::Outbox(std::shared_ptr<World> world, Channel& channel, int rank)
    : world_(std::move(world)), channel_(channel), rank_(rank) {
  const int64_t bytes = static_cast<int64_t>(sizeof(OutboxEntry)) * channel_.size;
  directory_ = world_->arena()->allocate(bytes);
  for (int receiver = 0; receiver < channel_.size; ++receiver) new (&entry(receiver)) OutboxEntry();
  ChannelSlot& slot = channel_.slot(rank_);
  slot.outbox = *world_->arena()->find(directory_, bytes);
  slot.has_outbox.store(1, std::memory_order_release);
}

Outbox::~Outbox() {
  // The rest, the directory and each list's last page, a receiver may still read.
  collect();
}

MessageRecord& Outbox::post(int receiver, const CallRecord& call, const SharedRange& source) {
  collect();
  MessagePage* page = last_[receiver];
  if (page == nullptr || page->count.load(std::memory_order_relaxed) == MessagePage::kRecords) {
    page = add_page(receiver);
  }
  const uint32_t number = page->count.load(std::memory_order_relaxed);
  MessageRecord& record = page->records[number];
  record.call = call;
  record.source = source;
  record.state.store(MessageRecord::kPosted, std::memory_order_relaxed);
  page->count.store(number + 1, std::memory_order_seq_cst);
  world_->bell_of(channel_.slot(receiver).world_rank).ring();
  return record;
}

void Outbox::release(MessageRecord& record) {
  auto after = pages_.upper_bound(reinterpret_cast<MessagePage*>(&record));
  ++std::prev(after)->second.released;
}

MessagePage* Outbox::add_page(int receiver) {
  auto* made = new (world_->arena()->allocate(sizeof(MessagePage))) MessagePage();
  const SharedRange range = *world_->arena()->find(made, sizeof(MessagePage));
  pages_[made] = {made};
  if (MessagePage*& last = last_[receiver]; last == nullptr) {
    entry(receiver).first = range;
    entry(receiver).has_first.store(1, std::memory_order_release);
    last = made;
  } else {
    last->next = range;
    last->has_next.store(1, std::memory_order_release);
    last = made;
  }
  return made;
}

void Outbox::collect() {
  for (auto place = pages_.begin(); place != pages_.end();) {
    const Page& page = place->second;
    const bool is_through = page.released == MessagePage::kRecords &&
                            page.page->left.load(std::memory_order_acquire) == 1;
    if (is_through) world_->arena()->free(reinterpret_cast<char*>(page.page));
    place = is_through ? pages_.erase(place) : std::next(place);
  }
}

}  // namespace tessera::internal::shm
