#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::internal {

/// Where rank 0 listens, as it leaves it in a store: at a port, or at an abstract socket of its
/// host.
struct Announcement {
  std::string secret;              ///< of this meeting; whoever reads the store knows it
  int port = 0;                    ///< 0 if it is a socket
  std::vector<std::string> hosts;  ///< its addresses, the best one first; or the socket's name

  /// "SECRET PORT HOST HOST...".
  std::string to_text() const;

  /// Nothing if the text is not of this form. A port is at most 65535; there are at most 64 hosts,
  /// and one name of a socket.
  static std::optional<Announcement> from_text(const std::string& text);
};

}  // namespace tessera::internal
