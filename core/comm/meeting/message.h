#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::internal {

/// The protocol's name and version, which both sides of a connection must have.
inline constexpr const char* kMeetingProtocol = "tessera meeting 2";

/// The kinds of messages in a meeting (Message::kind). A connection begins with the first four, in
/// order: both sides send a nonce, then the member and then the server prove, by a frame with a
/// MAC, that they know the key.
enum class MessageKind : uint8_t {
  kMemberNonce = 101,  ///< protocol, nonce
  kServerNonce = 102,  ///< protocol, nonce
  kMember = 103,       ///< the member's Hello
  kServer = 104,       ///< the Hello of rank 0
  kEnter = 105,        ///< from the server: what Transport::open() made
  kEntered = 106,      ///< from a member: it has entered the transport
  kGo = 107,           ///< from the server: all ranks have entered
  kGaveUp = 108,       ///< from a member: why it leaves
  kTimedOut = 109,     ///< from a member: its time-out in milliseconds, which has passed
  kFailure = 110,      ///< from the server: why the ranks do not meet
  kNote = 111,         ///< in a store: a secret, rank 0's port, its addresses (StorePlace)
};

/// Local. append_number() appends 32 bits, little-endian. take_number() removes such a number from
/// the front, or returns nullopt if there are fewer bits.
void append_number(std::string& bytes, uint32_t number);
std::optional<uint32_t> take_number(std::string_view& bytes);

/// A message of the meeting: a kind and some texts. Encoded as the kind, the number of texts (32
/// bits), and each text after its length (32 bits), little-endian.
struct Message {
  static constexpr size_t kMaxFields = 65536;

  uint8_t kind = 0;
  std::vector<std::string> fields;

  /// `Kind` is MessageKind, RequestKind or ReplyKind.
  template <typename Kind>
  static Message of(Kind kind, std::vector<std::string> fields = {}) {
    return {.kind = static_cast<uint8_t>(kind), .fields = std::move(fields)};
  }
  /// Returns true if it is of this kind and has that many fields.
  template <typename Kind>
  bool is(Kind of_kind, size_t count) const {
    return kind == static_cast<uint8_t>(of_kind) && fields.size() == count;
  }

  friend bool operator==(const Message&, const Message&) = default;

  std::string to_bytes() const;

  /// Returns nullopt unless `bytes` are exactly one message. Whatever the input, uses no more
  /// memory than a few times its size.
  static std::optional<Message> from_bytes(std::string_view bytes);
};

/// Local. Returns the nonce in `message`, or nullopt if this is not a valid message of that kind.
std::optional<std::string> parse_nonce(const Message& message, MessageKind kind);

}  // namespace tessera::internal
