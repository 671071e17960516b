#pragma once

#include <memory>
#include <string>
#include <utility>

#include <absl/status/statusor.h>

#include "tessera/core/comm/meeting/place.h"

namespace tessera::internal {

/// A Unix socket where the ranks of one host meet: at a path, in a directory of this user, or at an
/// abstract name (no file; it disappears with the process). The kernel reports the peers' user;
/// other users are not admitted. A socket at which nobody listens was left by a dead process and is
/// replaced; anything else at the path is an error and stays.
class UnixPlace final : public Place {
 public:
  /// `name` is a path if it begins with a slash, else an abstract name. `source` says where it was
  /// given, for messages.
  explicit UnixPlace(std::string name, std::string source = "the socket",
                     Credentials credentials = {})
      : name_(std::move(name)), source_(std::move(source)), credentials_(std::move(credentials)) {}

  /// Does not block. Processes that begin to listen in one directory at the same moment take turns:
  /// returns Unavailable while another process has its turn.
  absl::StatusOr<std::unique_ptr<Listener>> listen(Deadline deadline) override;
  /// Does not block. Returns NotFound if no process listens. Returns Unavailable if a process
  /// listens but accepts no connection now.
  absl::StatusOr<FileDescriptor> connect(Deadline deadline) override;
  Credentials credentials() const override { return credentials_; }
  /// Returns the path, or "@name".
  std::string text() const override { return is_path() ? name_ : "@" + name_; }

 private:
  bool is_path() const { return name_.front() == '/'; }
  std::string problem(const std::string& text) const;
  absl::Status system_error(const char* call) const;

  const std::string name_;
  const std::string source_;
  const Credentials credentials_;
};

}  // namespace tessera::internal
