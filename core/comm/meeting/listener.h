#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// A socket at which the members of a job arrive, and what stands for it elsewhere (a name in a
/// directory), which goes with it.
class Listener {
 public:
  /// Who may come in, after what the kernel says of the other side.
  using Admits = std::function<bool(int socket)>;

  /// `remove` is called once, in close() or the destructor; both may be empty.
  Listener(FileDescriptor socket, Admits admits, std::function<void()> remove)
      : socket_(std::move(socket)), admits_(std::move(admits)), remove_(std::move(remove)) {}
  ~Listener() { close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return socket_.get(); }
  /// Local, never blocks. One that waits and may come in; else not open.
  FileDescriptor accept();
  /// Local. Nobody arrives any more.
  void close();
  /// Local. The socket goes, and what stands for it stays: it is another process's.
  void abandon();

 private:
  FileDescriptor socket_;
  const Admits admits_;
  std::function<void()> remove_;
};

}  // namespace tessera::internal
