#pragma once

#include <memory>
#include <optional>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/core/comm/meeting/announcement.h"
#include "tessera/core/comm/meeting/place.h"
#include "tessera/core/comm/meeting/tcp_address.h"

namespace tessera::internal {

/// Where rank 0 leaves a text for the others. Errors as Place's.
class Board {
 public:
  virtual ~Board() = default;
  virtual absl::Status put(const std::string& text, Deadline deadline) = 0;
  /// What was put there last; nothing if nothing was.
  virtual absl::StatusOr<std::optional<std::string>> look(Deadline deadline) = 0;
};

/// Ranks that meet by a store: rank 0 leaves there, with a MAC (Note [Message authentication]),
/// where it listens and a random secret for this meeting; all else goes over connections. What an
/// earlier meeting has left there leads to nobody, and is read again until it changes.
class StorePlace final : public Place {
 public:
  struct Options {
    std::string text;  ///< the place for people
    Credentials credentials;
    bool is_one_host = false;  ///< rank 0 listens at a socket of its host, else at a port
    /// Others than the job's ranks read the store, so its secret is none: a port needs a token.
    bool is_public = false;
    /// Where the store is: rank 0 listens at its address on the way there; "": at all it has.
    std::string store_host;
    int store_port = 0;
  };

  StorePlace(std::unique_ptr<Board> board, Options options);

  absl::StatusOr<std::unique_ptr<Listener>> listen(Deadline deadline) override;
  absl::StatusOr<FileDescriptor> connect(Deadline deadline) override;
  Credentials credentials() const override;
  std::string text() const override { return options_.text; }

 private:
  std::string with_mac(const std::string& text) const;
  absl::Status check_public(const TcpAddress& address) const;
  absl::StatusOr<std::unique_ptr<Listener>> open_listener();

  const std::unique_ptr<Board> board_;
  const Options options_;
  Announcement said_;  // by this rank 0, or what another one has read last
};

}  // namespace tessera::internal
