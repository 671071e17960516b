#pragma once

#include <optional>
#include <string>

namespace tessera::internal {

/// Where rank 0 listens, as it publishes in torchrun's store: an abstract socket of this host, or a
/// port.
struct Announcement {
  std::string name;  ///< of listen_at_name(); "" if it is a port
  std::string host;
  int port = 0;

  /// "local NAME" or "tcp HOST PORT".
  std::string to_text() const;

  /// Nothing if the text is neither form. A port is between 1 and 65535.
  static std::optional<Announcement> from_text(const std::string& text);
};

}  // namespace tessera::internal
