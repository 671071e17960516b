#pragma once

#include <atomic>
#include <cstdint>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/shm/segment.h"

namespace tessera::internal::shm {

// Note [Messages]
// ~~~~~~~~~~~~~~~
// A message meets its receive without the rest of the group. A rank that sends writes a Message
// into memory of its own arena, appends it to the list that it has for the receiver, and rings the
// receiver's bell. The lists begin in an array of MessageLinks, one per receiver, which the
// sender's ChannelSlot names. The receiver looks through the lists, copies the data of what it
// wants out of the sender's arena itself, marks the message as taken and rings the sender's bell.
// So neither waits for the other's thread. Up to ProcessGroup::kBufferedBytes the sender copies the
// data into its arena, and is done; larger tensors stay where they are if that is in the arena, and
// are copied there otherwise. Copies go when they are taken, messages when the receiver has also
// gone on to the next one; what a receiver never took stays in the arena, because it may look there
// later.

/// Where a list goes on. Lies in shared memory, written by the sender but for `is_passed`.
struct MessageLink {
  std::atomic<uint32_t> has_next;   // 1 once `next` is set
  std::atomic<uint32_t> is_passed;  // 1 once the receiver has read `next`
  SharedRange next;
};

/// One message. `state`: written by both.
struct Message : MessageLink {
  enum State : uint32_t { kPosted, kTaking, kTaken, kWithdrawn };

  std::atomic<uint32_t> state;
  CallRecord call;
  SharedRange source;
};

}  // namespace tessera::internal::shm
