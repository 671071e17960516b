#include "tessera/tools/run/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace tessera::internal {
namespace {

/// Returns the longest prefix of `buffer` that a pipe accepts in one piece. If that is not all of
/// `buffer`, the prefix ends after a '\n' or '\r', where possible.
std::string_view first_chunk(const std::string& buffer) {
  const std::string_view all(buffer);
  if (all.size() <= PIPE_BUF) return all;
  const size_t line_end = all.substr(0, PIPE_BUF).find_last_of("\r\n");
  return all.substr(0, line_end == std::string_view::npos ? PIPE_BUF : line_end + 1);
}

}  // namespace

Sink::Sink(int fd) : fd_(fd) {
  struct stat kind;
  if (fstat(fd, &kind) != 0) return;
  is_socket_ = S_ISSOCK(kind.st_mode);
  // Not for a regular file: a second descriptor would have its own offset, and files never block.
  if (S_ISFIFO(kind.st_mode) || isatty(fd) == 1) {
    const std::string path = absl::StrCat("/proc/self/fd/", fd);
    own_ = FileDescriptor(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  }
}

void Sink::append(std::string_view text, const void* writer) {
  if (open_line_of_ != nullptr && open_line_of_ != writer) buffer_.push_back('\n');
  buffer_.append(text);
  open_line_of_ = text.ends_with('\n') ? nullptr : writer;
}

ssize_t Sink::write_chunk(std::string_view chunk) {
  if (is_socket_) return send(fd_, chunk.data(), chunk.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return ::write(poll_fd(), chunk.data(), chunk.size());
}

int Sink::write_some() {
  size_t written_bytes = 0;
  int error = 0;
  while (!is_gone_ && written_bytes < buffer_.size()) {
    // If the descriptor would block when full, write only one chunk per call.
    if (written_bytes > 0 && !own_.is_open() && !is_socket_) break;
    const std::string rest = buffer_.substr(written_bytes, PIPE_BUF + 1);
    const ssize_t count = write_chunk(first_chunk(rest));
    if (count >= 0) {
      written_bytes += static_cast<size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      error = errno;
      is_gone_ = true;
    }
  }
  if (is_gone_) {
    buffer_.clear();
  } else {
    buffer_.erase(0, written_bytes);
  }
  return error;
}

bool are_same_file(int one, int other) {
  struct stat a, b;
  return fstat(one, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

}  // namespace tessera::internal
