#include "tessera/core/comm/meeting/mac_key.h"

#include <sodium.h>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/message.h"

namespace tessera::internal {
namespace {

static_assert(MacKey::kBytes == crypto_auth_BYTES && MacKey::kBytes == crypto_auth_KEYBYTES);

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) {
    absl::StrAppend(&text, part.size(), ":", absl::string_view(part.data(), part.size()));
  }
  return text;
}

const unsigned char* as_bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

MacKey MacKey::of_token(std::string_view token) {
  MacKey key;
  crypto_generichash(key.key_.data(), kBytes, as_bytes(token), token.size(), nullptr, 0);
  return key;
}

MacKey MacKey::derive(std::initializer_list<std::string_view> parts) const {
  MacKey key;
  key.key_ = compute(parts);
  return key;
}

MacKey::Bytes MacKey::compute(std::initializer_list<std::string_view> parts) const {
  const std::string text = joined(parts);
  Bytes mac;
  crypto_auth(mac.data(), as_bytes(text), text.size(), key_.data());
  return mac;
}

bool MacKey::verify(std::string_view mac, std::initializer_list<std::string_view> parts) const {
  if (mac.size() != kBytes) return false;
  const std::string text = joined(parts);
  return crypto_auth_verify(as_bytes(mac), as_bytes(text), text.size(), key_.data()) == 0;
}

MacKey Credentials::connection_key(std::string_view member_nonce,
                                   std::string_view server_nonce) const {
  return MacKey::of_token(token).derive(
      {kMeetingProtocol, member_nonce, server_nonce, run_id, attempt});
}

std::string MacKey::new_nonce() {
  // sodium_init() must have run before other functions of libsodium may be called in several
  // threads.
  [[maybe_unused]] static const int is_ready = sodium_init();
  std::array<char, 16> random;
  randombytes_buf(random.data(), random.size());
  return absl::BytesToHexString(absl::string_view(random.data(), random.size()));
}

}  // namespace tessera::internal
