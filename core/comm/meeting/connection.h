#pragma once

#include <memory>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "tessera/core/comm/meeting/deadline.h"
#include "tessera/core/comm/meeting/framing.h"
#include "tessera/core/comm/meeting/hello.h"
#include "tessera/core/comm/meeting/mac_key.h"
#include "tessera/core/comm/meeting/message.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// A member's connection to rank 0, where its job meets. Both sides have proved that they know the
/// job's token, if it has one (Note [Message authentication]). One thread at a time.
///
/// All calls return these errors, whose texts continue "rank 0 (pid 12 on node7) ": Unavailable if
/// the other side has closed, DeadlineExceeded if it does not answer, DataLoss if what it sends
/// does not verify or is not a message.
class Connection {
 public:
  /// Local, but waits for rank 0 until `deadline`. Makes a connection of `socket`, which is
  /// connected to rank 0: each side proves to the other that it belongs to the job.
  static absl::StatusOr<std::unique_ptr<Connection>> enter(FileDescriptor socket,
                                                           const Credentials& credentials,
                                                           const Hello& own, Deadline deadline);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Returns rank 0's description of itself.
  const Hello& server() const { return server_; }

  absl::Status send(const Message& message, Deadline deadline);

  absl::StatusOr<Message> receive(Deadline deadline);

 private:
  explicit Connection(FileDescriptor socket);
  absl::Status prove(const Credentials& credentials, const Hello& own, Deadline deadline);
  absl::Status await(short events, Deadline deadline);

  const FileDescriptor socket_;
  Framing framing_{Framing::Side::kMember};
  Hello server_;
};

}  // namespace tessera::internal
