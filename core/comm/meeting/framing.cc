#include "tessera/core/comm/meeting/framing.h"

#include "tessera/core/comm/meeting/message.h"

namespace tessera::internal {
namespace {

constexpr size_t kLengthBytes = sizeof(uint32_t);

}  // namespace

std::string_view Framing::direction(bool sends) const {
  return sends == (side_ == Side::kMember) ? "to server" : "to member";
}

std::string Framing::wrap(std::string_view payload) {
  std::string bytes;
  bytes.reserve(kLengthBytes + payload.size() + MacKey::kBytes);
  append_number(bytes, static_cast<uint32_t>(payload.size()));
  bytes.append(payload);
  if (key_) {
    const MacKey::Bytes mac = key_->compute({direction(true), std::to_string(sent_++), payload});
    bytes.append(reinterpret_cast<const char*>(mac.data()), mac.size());
  }
  return bytes;
}

std::optional<std::string> Framing::take() {
  std::string_view rest = received_;
  const auto number = take_number(rest);
  if (is_broken_ || !number) return std::nullopt;
  const size_t length = *number;
  if (length > (is_trusted_ ? kMax : kMaxUnproven)) {
    is_broken_ = true;
    return std::nullopt;
  }
  const size_t whole = kLengthBytes + length + (key_ ? MacKey::kBytes : 0);
  if (received_.size() < whole) return std::nullopt;
  std::string payload(rest.substr(0, length));
  is_broken_ = key_ && !key_->verify(rest.substr(length, MacKey::kBytes),
                                     {direction(false), std::to_string(taken_++), payload});
  if (is_broken_) return std::nullopt;
  received_.erase(0, whole);
  return payload;
}

}  // namespace tessera::internal
