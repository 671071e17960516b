#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "tessera/core/comm/groups/call_record.h"

namespace tessera::internal::mpi {

/// A control message of fixed size between ranks. It is sent as plain bytes, because all ranks run
/// the same program on machines of one kind.
///
/// Note [Envelopes]
/// ~~~~~~~~~~~~~~~~
/// Every rank sends every other rank of the group an envelope with its call before it sends data.
/// So each rank knows which ranks have called, compares all calls, and names the missing ranks.
/// Small data travels in the envelope itself. Larger data is sent with a tag that the sender has
/// drawn for this call and put into the envelope. So groups need no communicators of their own.
/// (Making a communicator blocks, the ranks' threads may make groups in different orders, and MPI
/// libraries have room for few communicators.) A world has one communicator, whose tag 0 is for
/// envelopes. Only point-to-point messages are used, because an MPI collective cannot be cancelled
/// when a rank does not come, and does not report its progress.
struct Envelope {
  enum class Kind : uint32_t {
    kCall = 1,  ///< a collective of the group
    kMessage,   ///< a send to one rank
    kReceived,  ///< the sender has received the data with tag `data_tag`
    kLeft,      ///< the sender has left the group, after `number` calls
    kFailed,    ///< the group has failed, or the world if `group` is 0; calls before `number` may
                ///< still end well: Note [Failure]
    kLost,      ///< a rank has died: the world has failed, and no call ends well
    kEnded,     ///< the sender has left the world; its last envelope
    kRead,      ///< a request for a part of a window; `number` is the number of the request
    kAnswer,    ///< the answer to the kRead with the same number
    kClosed,    ///< the sender has destroyed its window `number`
  };
  static constexpr int64_t kPayloadBytes = 512;
  static constexpr size_t kCauseBytes = 672;

  Kind kind = Kind::kCall;
  int32_t data_tag = 0;  ///< tag of the data that follows
  /// The size of a message or an answer, even if its data is inside the envelope.
  int64_t data_bytes = 0;
  uint64_t group = 0;  ///< group_key()
  int64_t number = -1;
  CallRecord record;
  /// The length of the whole cause, of which `bytes` may hold only the beginning.
  uint32_t cause_length = 0;
  alignas(int64_t) char bytes[kCauseBytes];  ///< the cause of a failure, or a payload

  /// Returns true if `bytes` bytes of data travel inside the envelope.
  static bool holds(int64_t bytes) { return bytes <= kPayloadBytes; }
  char* payload() { return bytes; }
  const char* payload() const { return bytes; }
  std::string_view cause() const { return {bytes, std::min<size_t>(cause_length, sizeof(bytes))}; }
  void set_cause(std::string_view cause) {
    cause_length = static_cast<uint32_t>(cause.size());
    cause.copy(bytes, sizeof(bytes));
  }
};
static_assert(std::is_trivially_copyable_v<Envelope>);

/// An envelope that has come, and its sender.
struct Received {
  int from;
  Envelope envelope;
};

/// Returns the number that identifies a group in envelopes. It is a hash of `how`, the text that
/// says how the group was made, so it is equal on all ranks of the group. It is never 0.
inline uint64_t group_key(std::string_view how) { return std::max<uint64_t>(hash_of_tag(how), 1); }

}  // namespace tessera::internal::mpi
