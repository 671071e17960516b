#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/core/comm/meeting/credentials.h"
#include "tessera/core/comm/meeting/framing.h"
#include "tessera/core/comm/meeting/message.h"
#include "tessera/core/process/file_descriptor.h"
#include "tessera/core/process/fork.h"

namespace tessera::internal {

/// When to stop waiting.
using Deadline = std::chrono::steady_clock::time_point;

/// A member's connection to the host of its job's meeting. Both sides have proved that they belong
/// to the job, as far as its token proves it (Note [Message authentication]).
///
/// Errors of all calls; their texts continue "rank 0 (pid 12 on node7) ": Unavailable if the other
/// side has closed, DeadlineExceeded if it does not answer, DataLoss if what it sends does not
/// verify or is not a message. After an error every call returns it.
class Connection {
 public:
  /// Local, but waits for the other side until `deadline`. `socket` is connected.
  static absl::StatusOr<std::unique_ptr<Connection>> enter(FileDescriptor socket,
                                                           const Credentials& credentials,
                                                           Deadline deadline);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const HostProcess& host() const { return host_; }

  /// Sends a request and waits for the reply. One request at a time; thread-safe.
  absl::StatusOr<Message> ask(const Message& request, Deadline deadline);
  /// The same if the reply includes a descriptor, which works on the same host only. Not open if
  /// none came.
  struct Borrowed {
    Message reply;
    FileDescriptor descriptor;
  };
  absl::StatusOr<Borrowed> borrow(const Message& request, Deadline deadline);

 private:
  explicit Connection(FileDescriptor socket);
  absl::Status prove(const Credentials& credentials, Deadline deadline);
  absl::Status send(const Message& message, Deadline deadline);
  absl::StatusOr<Borrowed> receive(Deadline deadline);
  absl::Status await(short events, Deadline deadline);

  const Origin origin_;
  const FileDescriptor socket_;
  Framing framing_{Framing::Side::kMember};
  HostProcess host_;
  std::mutex mutex_;
  absl::Status broken_;
};

}  // namespace tessera::internal
