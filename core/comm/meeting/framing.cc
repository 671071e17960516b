#include "tessera/core/comm/meeting/framing.h"

#include <string>

namespace tessera::internal {
namespace {

constexpr size_t kLengthBytes = sizeof(uint32_t);

}  // namespace

std::string_view Framing::direction(bool sends) const {
  return sends == (side_ == Side::kMember) ? "to server" : "to member";
}

std::string Framing::wrap(std::string_view payload) {
  const auto length = static_cast<uint32_t>(payload.size());
  std::string bytes;
  bytes.reserve(kLengthBytes + payload.size() + MacKey::kBytes);
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(length >> shift));
  bytes.append(payload);
  if (key_) {
    const MacKey::Bytes mac = key_->compute({direction(true), std::to_string(sent_++), payload});
    bytes.append(reinterpret_cast<const char*>(mac.data()), mac.size());
  }
  return bytes;
}

std::optional<std::string> Framing::take() {
  if (is_broken_ || received_.size() < kLengthBytes) return std::nullopt;
  size_t length = 0;
  for (size_t i = kLengthBytes; i > 0; --i) {
    length = length << 8 | static_cast<uint8_t>(received_[i - 1]);
  }
  if (length > (is_trusted_ ? kMax : kMaxUnproven)) {
    is_broken_ = true;
    return std::nullopt;
  }
  const size_t whole = kLengthBytes + length + (key_ ? MacKey::kBytes : 0);
  if (received_.size() < whole) return std::nullopt;
  std::string payload = received_.substr(kLengthBytes, length);
  if (key_) {
    const std::string_view mac =
        std::string_view(received_).substr(kLengthBytes + length, MacKey::kBytes);
    if (!key_->verify(mac, {direction(false), std::to_string(taken_++), payload})) {
      is_broken_ = true;
      return std::nullopt;
    }
  }
  received_.erase(0, whole);
  return payload;
}

}  // namespace tessera::internal
