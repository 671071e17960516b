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

/// The kinds of messages in a meeting (values of Message::kind). A connection begins with messages
/// of the first four kinds, in this order. The nonces come first. Then the member, and after it the
/// server, sends a frame with a MAC, which proves that the sender knows the key.
enum class MessageKind : uint8_t {
  kMemberNonce = 101,  ///< protocol, nonce
  kServerNonce = 102,  ///< protocol, nonce
  kMember = 103,       ///< the member's Hello
  kServer = 104,       ///< the Hello of rank 0
  kEnter = 105,        ///< from the server: the text that Transport::open() returned
  kEntered = 106,      ///< from a member: it has entered the transport
  kGo = 107,           ///< from the server: all ranks have entered
  kGaveUp = 108,       ///< from a member: why it leaves
  kTimedOut = 109,     ///< from a member whose time-out has passed: the time-out in milliseconds
  kFailure = 110,      ///< from the server: why the ranks do not meet
  /// Not sent but written to a store: a secret, rank 0's port and its addresses (StorePlace).
  kNote = 111,
};

/// Local. append_number() appends `number` as 32 bits, little-endian. take_number() removes such a
/// number from the front of `bytes` and returns it; it returns nullopt if there are fewer than 32
/// bits.
void append_number(std::string& bytes, uint32_t number);
std::optional<uint32_t> take_number(std::string_view& bytes);

/// A message of the meeting: a kind and some texts. It is encoded as the kind (8 bits), the number
/// of texts, and for each text its length and its bytes. Numbers and lengths have 32 bits,
/// little-endian.
struct Message {
  static constexpr size_t kMaxFields = 65536;

  uint8_t kind = 0;
  std::vector<std::string> fields;

  /// `Kind` is MessageKind, RequestKind or ReplyKind.
  template <typename Kind>
  static Message of(Kind kind, std::vector<std::string> fields = {}) {
    return {.kind = static_cast<uint8_t>(kind), .fields = std::move(fields)};
  }
  /// Returns true if the message is of `of_kind` and has `count` fields.
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
