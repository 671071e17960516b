#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "tessera/core/comm/shm/sync.h"
#include "tessera/core/comm/shm/world.h"

namespace tessera::internal::shm {

// Note [Messages]
// ~~~~~~~~~~~~~~~
// A message meets its receive without the rest of the group. A rank that sends writes a record for
// the receiver into memory of its own arena, its outbox: one list of pages per receiver, found
// through the sender's ChannelSlot, and rings the receiver's bell. The receiver looks through the
// lists, copies the data of what it wants out of the sender's arena itself, marks the record as
// taken and rings the sender's bell. So neither waits for the other's thread. Up to
// ProcessGroup::kBufferedBytes the sender copies the data into its arena, and is done; larger
// tensors stay where they are if that is in the arena, and are copied there otherwise. Records and
// copies go when they are taken and when the receiver has gone on to the next page; what a receiver
// never took stays in the arena, because it may look there later.

/// One message. Lies in shared memory, written by the sender but for `state`.
struct MessageRecord {
  enum State : uint32_t { kPosted, kTaking, kTaken, kWithdrawn };

  std::atomic<uint32_t> state;
  CallRecord call;
  SharedRange source;
};

/// A part of the list of messages from one rank to another.
struct MessagePage {
  static constexpr uint32_t kRecords = 16;

  std::atomic<uint32_t> count;     // of records, posted
  std::atomic<uint32_t> has_next;  // 1 once `next` is set; after the last record
  std::atomic<uint32_t> left;      // 1 once the receiver has read `next`
  SharedRange next;
  MessageRecord records[kRecords];
};
static_assert(sizeof(MessagePage) <= kPageBytes);

/// Where the list for one receiver begins.
struct OutboxEntry {
  std::atomic<uint32_t> has_first;
  SharedRange first;
};

/// This rank's outbox in one group. Used under its owner's lock.
class Outbox {
 public:
  Outbox(std::shared_ptr<World> world, Channel& channel, int rank);
  /// Frees what receivers are through with.
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  /// Posts a message and wakes its receiver. The record stays valid until release().
  MessageRecord& post(int receiver, const CallRecord& call, const SharedRange& source);
  /// The sender has no more use for the record, which is taken.
  void release(MessageRecord& record);

 private:
  struct Page {
    MessagePage* page = nullptr;
    uint32_t released = 0;
  };

  OutboxEntry& entry(int receiver) { return reinterpret_cast<OutboxEntry*>(directory_)[receiver]; }
  MessagePage* add_page(int receiver);
  void collect();

  const std::shared_ptr<World> world_;
  Channel& channel_;
  const int rank_;
  char* directory_ = nullptr;
  std::map<int, MessagePage*> last_;    // by receiver
  std::map<MessagePage*, Page> pages_;  // all that are not freed
};

}  // namespace tessera::internal::shm
