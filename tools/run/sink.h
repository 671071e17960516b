#pragma once

#include <string>
#include <string_view>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// The launcher's own stdout or stderr: a buffer and a descriptor that is written to only when it
/// takes something, so that a slow or stopped terminal never stops the launcher. Several writers
/// append to it; their lines do not mix.
class Sink {
 public:
  /// From this size on `full()` holds and nobody should append more.
  static constexpr size_t kFull_bytes = 256 * 1024;

  /// `fd` stays the caller's and is not changed. A terminal or a pipe is opened anew, because its
  /// non-blocking mode would otherwise be switched on for every process that shares it.
  explicit Sink(int fd);

  /// Appends `text` of `writer`, any address. Where the last line is another writer's and has no
  /// newline, it gets one first. Without a writer `text` has to be whole lines.
  void append(std::string_view text, const void* writer = nullptr);
  /// Whether what was appended last is of `writer`, and its line has no newline.
  bool has_open_line_of(const void* writer) const { return open_line_of_ == writer; }
  /// What is not written yet.
  const std::string& buffer() const { return buffer_; }
  bool empty() const { return buffer_.empty(); }
  bool full() const { return buffer_.size() >= kFull_bytes; }
  /// What to poll for POLLOUT while not `empty()`.
  int poll_fd() const { return own_.is_open() ? own_.get() : fd_; }

  /// Writes what the descriptor takes now; call it when `poll_fd()` is writable. Lines shorter than
  /// 4096 bytes go to a pipe in one piece. Returns the system's error number when the other end is
  /// gone or full, else 0; from then on output is dropped, and this returns 0.
  int write_some();

 private:
  ssize_t write_chunk(std::string_view chunk);

  int fd_;
  FileDescriptor own_;
  bool is_socket_ = false;
  bool is_gone_ = false;
  std::string buffer_;
  const void* open_line_of_ = nullptr;
};

/// Whether two descriptors are of one file, pipe or terminal.
bool are_same_file(int one, int other);

}  // namespace tessera::internal
