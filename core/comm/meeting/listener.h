#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// A listening socket for the members of a job, and its name elsewhere (in a directory), which is
/// removed with it.
class Listener {
 public:
  /// Whether a connection is admitted, by what the kernel says of the other side.
  using Admits = std::function<bool(int socket)>;

  /// `remove` is called once, in close() or the destructor; both may be empty.
  explicit Listener(FileDescriptor socket, Admits admits = nullptr,
                    std::function<void()> remove = nullptr)
      : socket_(std::move(socket)), admits_(std::move(admits)), remove_(std::move(remove)) {}
  ~Listener() { close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return socket_.get(); }
  /// Local, never blocks. A waiting connection that is admitted; else not open.
  FileDescriptor accept();
  /// Local. Closes the socket and removes its name.
  void close();

 private:
  FileDescriptor socket_;
  const Admits admits_;
  std::function<void()> remove_;
};

}  // namespace tessera::internal
