#include "tessera/core/comm/meeting/message.h"

namespace tessera::internal {

void append_number(std::string& bytes, uint32_t number) {
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(number >> shift));
}

std::optional<uint32_t> take_number(std::string_view& bytes) {
  if (bytes.size() < sizeof(uint32_t)) return std::nullopt;
  uint32_t number = 0;
  for (int i = 3; i >= 0; --i) number = number << 8 | static_cast<uint8_t>(bytes[i]);
  bytes.remove_prefix(sizeof(uint32_t));
  return number;
}

std::string Message::to_bytes() const {
  std::string bytes(1, static_cast<char>(kind));
  append_number(bytes, static_cast<uint32_t>(fields.size()));
  for (const std::string& field : fields) {
    append_number(bytes, static_cast<uint32_t>(field.size()));
    bytes += field;
  }
  return bytes;
}

std::optional<Message> Message::from_bytes(std::string_view bytes) {
  if (bytes.empty()) return std::nullopt;
  Message message;
  message.kind = static_cast<uint8_t>(bytes[0]);
  bytes.remove_prefix(1);
  const auto count = take_number(bytes);
  // Every field takes at least four bytes, for its length. So a count that the remaining bytes
  // cannot hold is refused before memory is reserved for it.
  if (!count || *count > kMaxFields || *count > bytes.size() / sizeof(uint32_t)) {
    return std::nullopt;
  }
  message.fields.reserve(*count);
  for (uint32_t i = 0; i < *count; ++i) {
    const auto length = take_number(bytes);
    if (!length || *length > bytes.size()) return std::nullopt;
    message.fields.emplace_back(bytes.substr(0, *length));
    bytes.remove_prefix(*length);
  }
  if (!bytes.empty()) return std::nullopt;
  return message;
}

std::optional<std::string> parse_nonce(const Message& message, MessageKind kind) {
  if (!message.is(kind, 2) || message.fields[0] != kMeetingProtocol) return std::nullopt;
  if (message.fields[1].empty()) return std::nullopt;
  return message.fields[1];
}

}  // namespace tessera::internal
