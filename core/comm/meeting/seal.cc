#include "tessera/core/comm/meeting/seal.h"

#include <sodium.h>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

static_assert(Seal::kBytes == crypto_auth_BYTES && Seal::kBytes == crypto_auth_KEYBYTES);

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

Seal Seal::of_token(std::string_view token) {
  Seal seal;
  crypto_generichash(seal.key_.data(), kBytes, as_bytes(token), token.size(), nullptr, 0);
  return seal;
}

Seal Seal::derive(std::initializer_list<std::string_view> parts) const {
  Seal seal;
  seal.key_ = make(parts);
  return seal;
}

Seal::Bytes Seal::make(std::initializer_list<std::string_view> parts) const {
  const std::string text = joined(parts);
  Bytes seal;
  crypto_auth(seal.data(), as_bytes(text), text.size(), key_.data());
  return seal;
}

bool Seal::verify(std::string_view seal, std::initializer_list<std::string_view> parts) const {
  if (seal.size() != kBytes) return false;
  const std::string text = joined(parts);
  return crypto_auth_verify(as_bytes(seal), as_bytes(text), text.size(), key_.data()) == 0;
}

std::string Seal::new_nonce() {
  static const int is_ready = sodium_init();  // makes the next line safe in threads
  static_cast<void>(is_ready);
  std::array<char, 16> random;
  randombytes_buf(random.data(), random.size());
  return absl::BytesToHexString(absl::string_view(random.data(), random.size()));
}

}  // namespace tessera::internal
