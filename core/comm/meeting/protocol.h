#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/comm/meeting/message.h"

namespace tessera::internal {

/// The protocol's name and version, which both sides of a connection must have.
inline constexpr const char* kMeetingProtocol = "tessera meeting 2";

/// What is said in a meeting, as Message::kind. A connection begins with the first four, in order:
/// both sides send a nonce, then the member and then the server prove, by a frame with a MAC, that
/// they know the key.
enum class MessageKind : uint8_t {
  kMemberNonce = 101,  ///< protocol, nonce
  kServerNonce = 102,  ///< protocol, nonce
  kMember = 103,       ///< the member's Hello
  kServer = 104,       ///< the Hello of rank 0
  kEnter = 105,        ///< from the server: what Transport::open() made, perhaps with a descriptor
  kEntered = 106,      ///< from a member: it has entered the transport
  kGo = 107,           ///< from the server: all have
  kGaveUp = 108,       ///< from a member: why it leaves
  kTimedOut = 109,     ///< from a member: its time-out, which is over, in milliseconds
  kFailure = 110,      ///< from the server: why nobody meets
};

/// Local. Make a message, and tell what it is: whether it is of this kind, with so many fields.
Message make_message(MessageKind kind, std::vector<std::string> fields = {});
bool is_message(const Message& message, MessageKind kind, size_t fields);

/// Local. The message with a nonce, and the nonce in one that is valid.
Message nonce_message(MessageKind kind, const std::string& nonce);
std::optional<std::string> parse_nonce(const Message& message, MessageKind kind);

}  // namespace tessera::internal
