#pragma once

#include <optional>
#include <string>

namespace tessera::internal {

/// Where rank 0 listens, as it says in torchrun's store: at a name of this host, or at a port.
struct Announcement {
  std::string name;  ///< of listen_at_name(); "" if it is a port
  std::string host;
  int port = 0;

  /// "local NAME" or "tcp HOST PORT".
  std::string to_text() const;

  /// Nothing if the text says neither. A port lies between 1 and 65535.
  static std::optional<Announcement> from_text(const std::string& text);
};

}  // namespace tessera::internal
