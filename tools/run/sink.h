#pragma once

#include <string>
#include <string_view>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {

/// The launcher's own stdout or stderr: a buffer, and a descriptor that is written only when it
/// accepts output, so a slow or stopped terminal never blocks the launcher. Several writers append
/// to it; their lines do not mix.
class Sink {
 public:
  /// When the buffer has this size, full() returns true and callers should append no more.
  static constexpr size_t kFull_bytes = 256 * 1024;

  /// `fd` stays the caller's and is not changed. A terminal or a pipe is opened a second time,
  /// because setting `fd` to non-blocking would affect every process that shares it.
  explicit Sink(int fd);

  /// Appends `text` of `writer`, identified by any address. If the last line is another writer's
  /// and has no newline, appends one first. Without a writer, `text` must consist of whole lines.
  void append(std::string_view text, const void* writer = nullptr);
  /// Returns true if `writer` appended last, and its line has no newline.
  bool has_open_line_of(const void* writer) const { return open_line_of_ == writer; }
  /// Returns the output that is not written yet.
  const std::string& buffer() const { return buffer_; }
  bool empty() const { return buffer_.empty(); }
  bool full() const { return buffer_.size() >= kFull_bytes; }
  /// Returns the descriptor to poll for POLLOUT while not `empty()`.
  int poll_fd() const { return own_.is_open() ? own_.get() : fd_; }

  /// Writes as much as the descriptor accepts now; call it when `poll_fd()` is writable. Lines
  /// shorter than 4096 bytes go to a pipe in one piece. Returns errno if the other end is gone or
  /// full, else 0. After an error output is dropped, and this returns 0.
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

/// Returns true if two descriptors refer to the same file, pipe or terminal.
bool are_same_file(int one, int other);

}  // namespace tessera::internal
