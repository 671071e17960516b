#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/core/comm/meeting/mac_key.h"

namespace tessera::internal {

/// The store in which ranks exchange texts during the handshake. In a store that others may write
/// to, every text carries a MAC of its key and itself (Note [Message authentication]); a text
/// without a valid MAC is ignored.
class HandshakeStore {
 public:
  /// Without MACs.
  explicit HandshakeStore(c10d::Store& store) : store_(store) {}
  HandshakeStore(c10d::Store& store, const std::string& token)
      : store_(store), mac_key_(MacKey::of_token(token)) {}

  void set(const std::string& key, const std::string& text);
  /// Returns at once; nothing if there is no such key, or its text does not verify.
  std::optional<std::string> get(const std::string& key);

  /// How many texts did not verify so far.
  int64_t ignored() const { return static_cast<int64_t>(ignored_.size()); }

 private:
  c10d::Store& store_;
  const std::optional<MacKey> mac_key_;
  std::set<std::string> ignored_;  // keys; bounded by those that we ask for
};

}  // namespace tessera::internal
