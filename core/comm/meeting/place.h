#pragma once

#include <functional>
#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "tessera/core/comm/meeting/deadline.h"
#include "tessera/core/comm/meeting/listener.h"
#include "tessera/core/comm/meeting/mac_key.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// Called with a warning for the user while the ranks look for each other.
using Warn = std::function<void(const std::string& text)>;

/// A place where the ranks of a job meet: rank 0 listens there, and the others connect to it. There
/// are three kinds:
/// - UnixPlace: a Unix socket of one host, at a path or an abstract name;
/// - AddressPlace: a TCP address of rank 0, and a token;
/// - StorePlace: a store, the user's or torchrun's, where rank 0 leaves a note of where it listens.
///
/// If waiting does not help, listen() and connect() return FailedPrecondition or PermissionDenied,
/// with a text that begins with what was given and ends with the remedy. The text of any other
/// error continues "rank 1 waits: ".
class Place {
 public:
  virtual ~Place() = default;

  /// Makes rank 0 listen at the place. Returns AlreadyExists if another process listens there
  /// already; the text of that error also begins with what was given.
  virtual absl::StatusOr<std::unique_ptr<Listener>> listen(Deadline deadline) = 0;

  /// Connects to the process that listens at the place; tries only once.
  virtual absl::StatusOr<FileDescriptor> connect(Deadline deadline) = 0;

  /// Returns the credentials that both sides of a connection must have. Call it after listen() or
  /// connect().
  virtual Credentials credentials() const = 0;

  /// Returns a description of the place for people, such as "MASTER_ADDR and MASTER_PORT
  /// node1:29500". It contains no secret.
  virtual std::string text() const = 0;
};

}  // namespace tessera::internal
