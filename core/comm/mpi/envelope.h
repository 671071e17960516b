#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "tessera/core/comm/groups/call_record.h"

namespace tessera::internal::mpi {

/// What ranks tell each other beside the data, of one size. Plain bytes: all ranks run one program
/// on machines of one kind.
///
/// Note [Envelopes]
/// ~~~~~~~~~~~~~~~~
/// Every rank sends every other rank of the group an envelope with its call before it sends data,
/// so each knows who has come, compares all calls, and names who is missing. Small data travels in
/// the envelope itself. Data is sent with a tag that its sender has drawn for this call and says in
/// the envelope. So groups need no communicators of their own: making one blocks, in an order that
/// threads of the ranks may not share, and libraries have room for few. A world has one, whose tag
/// 0 is for envelopes. Nothing but messages between two ranks is used, for an MPI collective cannot
/// be given up when a rank does not come, nor does it say how many bytes it moves.
struct Envelope {
  enum class Kind : uint32_t {
    kCall = 1,  ///< a collective of the group
    kMessage,   ///< a send to one rank
    kReceived,  ///< the sender of this has what was sent to it by `data_tag`
    kLeft,      ///< the sender has left the group, after `number` calls
    kFailed,    ///< the group has failed, or the world if `group` is 0; `number` of calls may still
                ///< end well: Note [Failure]
    kLost,      ///< a rank has died: the world has failed, and nothing ends well
    kEnded,     ///< the sender has left the world: the last envelope of it
    kRead,      ///< asks for a part of a window; `number` numbers the requests
    kAnswer,    ///< the answer
    kClosed,    ///< the sender has destroyed its window `number`
  };
  static constexpr int64_t kPayloadBytes = 512;
  static constexpr size_t kCauseBytes = 672;

  Kind kind = Kind::kCall;
  int32_t data_tag = 0;    ///< of the data that follows
  int64_t data_bytes = 0;  ///< what a message or an answer has, also inside
  uint64_t group = 0;      ///< group_key()
  int64_t number = -1;
  CallRecord record;
  uint32_t cause_length = 0;                 ///< of all of it, though less may be kept
  alignas(int64_t) char bytes[kCauseBytes];  ///< the cause of a failure, or a payload

  /// Whether so much data travels inside.
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

/// One that has come, from that rank.
struct Received {
  int from;
  Envelope envelope;
};

/// The number in envelopes of the group that is made so, equal on all its ranks; never 0.
inline uint64_t group_key(std::string_view how) { return std::max<uint64_t>(hash_of_tag(how), 1); }

}  // namespace tessera::internal::mpi
