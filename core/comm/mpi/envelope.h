#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "tessera/collective.h"

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
    kCall = 1,    ///< a collective of the group
    kMessage,     ///< a send to one rank
    kReceived,    ///< the sender of this has what was sent to it by `data_tag`
    kLeft,        ///< the sender has left the group; `sequence` is how many calls it has finished
    kFailed,      ///< the group has failed, or the world if `group` is 0; `text` is the cause
    kEnded,       ///< the sender has left the world: the last envelope of it
    kRead,        ///< asks for a part of a window; `sequence` numbers the sender's requests
    kAnswer,      ///< to that request: `signature.numel` bytes, inside or by `data_tag`
    kRefused,     ///< to that request: there is no such memory
    kClosed,      ///< the sender has destroyed its window number `sequence`
    kAskFlight,   ///< asks for the last `signature.numel` calls; `sequence` numbers the questions
    kFlight,      ///< a part of the answer
    kAsksNoMore,  ///< the sender would leave the world, but for others' questions after a failure
    kLost,        ///< a rank has died: the world has failed with `text`, and nothing ends well
  };
  static constexpr size_t kTagBytes = 160;
  static constexpr size_t kPayloadBytes = 512;

  Kind kind = Kind::kCall;
  uint32_t text_length = 0;  ///< of all of it, though less may be kept
  uint64_t group = 0;        ///< group_key() of its name
  int64_t sequence = -1;
  uint64_t text_hash = 0;
  CallSignature signature;
  int32_t slice = -1;
  int32_t data_tag = 0;
  char text[kTagBytes + kPayloadBytes];

  char* payload() { return text + kTagBytes; }
  const char* payload() const { return text + kTagBytes; }
  /// The tag of a call, as far as it was kept.
  std::string_view tag() const { return {text, text_length < kTagBytes ? text_length : kTagBytes}; }
  /// The cause of a failure.
  std::string_view cause() const {
    return {text, text_length < sizeof(text) ? text_length : sizeof(text)};
  }

  void set_tag(std::string_view tag);
  void set_cause(std::string_view cause);

  bool has_same_tag(const Envelope& other) const {
    return text_hash == other.text_hash && text_length == other.text_length;
  }
  bool is_same_call(const Envelope& other) const {
    return signature == other.signature && has_same_tag(other);
  }
};
static_assert(std::is_trivially_copyable_v<Envelope>);

/// A group's number in envelopes; never 0.
uint64_t group_key(std::string_view name);

}  // namespace tessera::internal::mpi
