#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::internal {

/// Where rank 0 listens, as it leaves it in a store: at an abstract socket of its host, or at a
/// port.
struct Announcement {
  std::string secret;              ///< of this meeting; whoever reads the store knows it
  std::string name;                ///< of listen_at_name(); "" if it is a port
  std::vector<std::string> hosts;  ///< its addresses, the best one first
  int port = 0;

  /// "SECRET local NAME" or "SECRET tcp PORT HOST HOST...".
  std::string to_text() const;

  /// Nothing if the text is neither form. A port is between 1 and 65535; there are at most 64
  /// hosts.
  static std::optional<Announcement> from_text(const std::string& text);
};

}  // namespace tessera::internal
