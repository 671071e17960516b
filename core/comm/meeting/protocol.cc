#include "tessera/core/comm/meeting/protocol.h"

#include <utility>

namespace tessera::internal {
namespace {

constexpr size_t kMaxNonce = 64;

}  // namespace

Message make_message(MessageKind kind, std::vector<std::string> fields) {
  return {.kind = static_cast<uint8_t>(kind), .fields = std::move(fields)};
}

bool is_message(const Message& message, MessageKind kind, size_t fields) {
  return message.kind == static_cast<uint8_t>(kind) && message.fields.size() == fields;
}

Message nonce_message(MessageKind kind, const std::string& nonce) {
  return make_message(kind, {kMeetingProtocol, nonce});
}

std::optional<std::string> parse_nonce(const Message& message, MessageKind kind) {
  if (!is_message(message, kind, 2) || message.fields[0] != kMeetingProtocol) return std::nullopt;
  if (message.fields[1].empty() || message.fields[1].size() > kMaxNonce) return std::nullopt;
  return message.fields[1];
}

}  // namespace tessera::internal
