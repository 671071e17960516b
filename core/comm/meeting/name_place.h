#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tessera/core/comm/meeting/abstract_socket.h"
#include "tessera/core/comm/meeting/place.h"

namespace tessera::internal {

/// An abstract socket of this host, with a random name that rank 0 has told the others.
class NamePlace final : public Place {
 public:
  explicit NamePlace(std::string name) : name_(std::move(name)) {}

  absl::StatusOr<std::unique_ptr<Listener>> listen(Deadline /*deadline*/) override {
    return listen_at_name(name_);
  }
  absl::StatusOr<FileDescriptor> connect(Deadline /*deadline*/) override {
    return connect_to_name(name_);
  }

  Credentials credentials() const override { return {}; }
  std::string text() const override { return "a socket of this host"; }

 private:
  const std::string name_;
};

}  // namespace tessera::internal
