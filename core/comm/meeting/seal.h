#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tessera::internal {

/// Note [Seals]
/// ~~~~~~~~~~~~
/// What comes over a network may come from anybody. Ranks of a job share a token, and every text of
/// theirs carries a seal, which nobody can make without it: HMAC-SHA512-256 (libsodium's
/// crypto_auth), with a key that is the token's BLAKE2b hash. The key of a connection is the seal
/// of both sides' random numbers and of the job's run id and attempt, and each of its frames is
/// sealed with its direction and number: no text fits into another connection, attempt, direction
/// or place. Seals prove who wrote a text; they hide nothing.
///
/// Without a token every process computes the same seals: they prove nothing, and only the place
/// (a socket of the same user, the loopback device) keeps strangers away.
class Seal {
 public:
  static constexpr size_t kBytes = 32;
  using Bytes = std::array<unsigned char, kBytes>;

  /// Local. The key that `token`, of any length, stands for.
  static Seal of_token(std::string_view token);
  /// Local. A key that only who has this one and knows all parts can derive.
  Seal derive(std::initializer_list<std::string_view> parts) const;

  /// Local. The seal of the parts; parts cut otherwise have another one.
  Bytes make(std::initializer_list<std::string_view> parts) const;
  /// Local. Whether `seal` is that. Takes the same time for every wrong one.
  bool verify(std::string_view seal, std::initializer_list<std::string_view> parts) const;

  /// Local. 128 random bits, hexadecimal.
  static std::string new_nonce();

 private:
  Bytes key_{};
};

}  // namespace tessera::internal
