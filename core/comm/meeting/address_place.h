#pragma once

#include <optional>
#include <string>
#include <utility>

#include "tessera/core/comm/meeting/place.h"
#include "tessera/core/comm/meeting/tcp_address.h"

namespace tessera::internal {

/// A TCP address at which the ranks meet. Rank 0 listens at this address only. Every frame has a
/// MAC: see Note [Message authentication].
class AddressPlace final : public Place {
 public:
  /// `source` says, for messages, where the address was given, such as "MASTER_ADDR and
  /// MASTER_PORT" or "store_url".
  AddressPlace(std::string host, int port, std::string source, Credentials credentials, Warn warn)
      : host_(std::move(host)),
        port_(port),
        source_(std::move(source)),
        credentials_(std::move(credentials)),
        warn_(std::move(warn)) {}

  /// Returns FailedPrecondition if the host is unknown or is not this machine, or if other machines
  /// can reach the address and there is no token. Warns if there is no token and none is required.
  absl::StatusOr<std::unique_ptr<Listener>> listen(Deadline deadline) override;
  /// Returns NotFound if the network does not know the host name yet.
  absl::StatusOr<FileDescriptor> connect(Deadline deadline) override;
  Credentials credentials() const override { return credentials_; }
  std::string text() const override;

 private:
  absl::StatusOr<TcpAddress> resolve();
  std::string problem(const std::string& text) const;

  const std::string host_;
  const int port_;
  const std::string source_;
  const Credentials credentials_;
  const Warn warn_;
  std::optional<TcpAddress> address_;  // once it is known
};

/// Local. Returns FailedPrecondition if `token` is empty and other machines can reach the address.
absl::Status check_token(const TcpAddress& address, const std::string& token);

}  // namespace tessera::internal
