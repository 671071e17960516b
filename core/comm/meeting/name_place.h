#pragma once

#include <memory>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/abstract_socket.h"
#include "tessera/core/comm/meeting/place.h"

namespace tessera::internal {

/// An abstract socket of this host. Rank 0 listens there already, and has told the others its name.
class NamePlace final : public Place {
 public:
  /// `listener`: rank 0's; null elsewhere.
  NamePlace(std::string name, std::unique_ptr<Listener> listener)
      : name_(std::move(name)), listener_(std::move(listener)) {}

  absl::StatusOr<std::unique_ptr<Listener>> listen(Deadline /*deadline*/) override {
    return std::move(listener_);
  }

  /// FailedPrecondition if nobody listens: rank 0 did when it told the name.
  absl::StatusOr<FileDescriptor> connect(Deadline /*deadline*/) override {
    auto socket = connect_to_name(name_);
    if (!absl::IsNotFound(socket.status())) return socket;
    return absl::FailedPreconditionError(
        absl::StrCat("the rank of this host that listens for the others: ",
                     std::string(socket.status().message()),
                     ", expected it to wait for them; see "
                     "why it has ended"));
  }

  Credentials credentials() const override { return {}; }
  std::string text() const override { return "a socket of this host"; }

 private:
  const std::string name_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace tessera::internal
