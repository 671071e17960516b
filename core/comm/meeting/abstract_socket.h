#pragma once

#include <memory>
#include <string>
#include <utility>

#include <absl/status/statusor.h>

#include "tessera/core/comm/meeting/listener.h"
#include "tessera/core/comm/meeting/place.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// Local, does not block. Listens at an abstract Unix socket (no file; it disappears with the
/// process); admits processes of this user only. Unavailable, with the system's reason.
absl::StatusOr<std::unique_ptr<Listener>> listen_at_name(const std::string& name);

/// Local, does not block. A connection to the listener of that name. NotFound if no process of this
/// user listens there, Unavailable with the system's reason.
absl::StatusOr<FileDescriptor> connect_to_name(const std::string& name);

/// Local. A Unix socket that never blocks, above the standard streams; not open, with errno set, if
/// there is none.
FileDescriptor new_local_socket();

/// Local. Whether the kernel says that the process at the other end of a Unix socket is this
/// user's.
bool is_of_this_user(int socket);

/// Local. The process at the other end of a Unix socket; 0 if that is unknown.
int peer_pid(int socket);

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
