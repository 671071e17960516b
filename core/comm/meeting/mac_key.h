#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tessera::internal {

/// Note [Message authentication]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
/// Data from a network may come from anybody. Ranks of a job share a token, and each of their
/// messages carries a message authentication code (MAC), which nobody can compute without the
/// token: HMAC-SHA512-256 (libsodium's crypto_auth), with the token's BLAKE2b hash as key. The key
/// of a connection is the MAC of both sides' random numbers and of the job's run id and attempt.
/// The MAC of a frame covers its direction and number, so a frame cannot be replayed in another
/// connection, attempt, direction or position. MACs authenticate; they do not encrypt.
///
/// Without a token every process computes the same MACs, so they prove nothing. Then others are
/// kept out only by the kind of place at which the ranks meet: a socket of the same user, or the
/// loopback device.
class MacKey {
 public:
  static constexpr size_t kBytes = 32;
  using Bytes = std::array<unsigned char, kBytes>;

  /// Local. Returns the key that is derived from `token`, which may have any length.
  static MacKey of_token(std::string_view token);
  /// Local. Derives a key from this one and `parts`.
  MacKey derive(std::initializer_list<std::string_view> parts) const;

  /// Local. Returns the MAC of `parts`. The same bytes, split into other parts, have another MAC.
  Bytes compute(std::initializer_list<std::string_view> parts) const;
  /// Local. Returns true if `mac` is the MAC of `parts`. Takes constant time.
  bool verify(std::string_view mac, std::initializer_list<std::string_view> parts) const;

  /// Local. Returns 128 random bits, in hexadecimal.
  static std::string new_nonce();

 private:
  Bytes key_{};
};

/// The credentials with which a rank is admitted to its job's meeting.
struct Credentials {
  std::string token = {};    ///< the job's secret; "" for none
  std::string run_id = {};   ///< the launcher's name for the job
  std::string attempt = {};  ///< how often the launcher has restarted the job

  /// Returns the key of a connection whose sides have these nonces.
  MacKey connection_key(std::string_view member_nonce, std::string_view server_nonce) const;
};

}  // namespace tessera::internal
