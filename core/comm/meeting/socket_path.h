#pragma once

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/core/comm/meeting/place.h"

namespace tessera::internal {

/// A Unix socket's path, in a directory of this user, where the ranks of one host meet. The kernel
/// reports the peers' user; other users are not admitted. A socket at which nobody listens was left
/// by a dead process and is replaced; anything else at the path is an error and stays.
///
/// Paths may be of any length: the socket is bound through /proc/self/fd, and a file name that is
/// too long is cut and hashed, the same way in all processes.
class SocketPath final : public Place {
 public:
  /// Local. `source` says where the path was given, for messages. FailedPrecondition, naming the
  /// path and the reason, if the directory cannot be opened.
  static absl::StatusOr<std::unique_ptr<SocketPath>> open(const std::string& path,
                                                          const std::string& source = "the path",
                                                          Credentials credentials = {});

  /// Does not block. Of two processes that replace a dead one's socket in the same microseconds one
  /// may stay without its name: two ranks 0, which is an error anyway.
  absl::StatusOr<std::unique_ptr<Listener>> listen(Deadline deadline) override;
  /// Does not block. NotFound if nobody listens, Unavailable if who does lets nobody in now.
  absl::StatusOr<FileDescriptor> connect(Deadline deadline) override;
  Credentials credentials() const override { return credentials_; }
  std::string text() const override { return path_; }

 private:
  SocketPath(std::string path, std::string source, Credentials credentials,
             FileDescriptor directory, std::string name);

  absl::Status system_error(const char* what) const;

  const std::string path_;
  const std::string source_;
  const Credentials credentials_;
  const std::shared_ptr<const FileDescriptor> directory_;
  const std::string name_;  // in the directory
};

}  // namespace tessera::internal
