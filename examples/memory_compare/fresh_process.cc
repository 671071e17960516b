#include "tessera/examples/memory_compare/fresh_process.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tessera/record_errors.h"

namespace memory_compare {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(std::string("[memory_compare] ") + what + ": " + std::strerror(errno) +
                           " (see ulimit -n and ulimit -u)");
}

bool write_all(int fd, const std::vector<int64_t>& words) {
  const char* data = reinterpret_cast<const char*>(words.data());
  size_t left = words.size() * sizeof(int64_t);
  while (left > 0) {
    const ssize_t written = write(fd, data, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    left -= static_cast<size_t>(written);
  }
  return true;
}

std::vector<int64_t> read_all(int fd) {
  std::string bytes;
  char part[4096];
  for (;;) {
    const ssize_t got = read(fd, part, sizeof(part));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    bytes.append(part, static_cast<size_t>(got));
  }
  std::vector<int64_t> words(bytes.size() / sizeof(int64_t));
  if (!words.empty()) std::memcpy(words.data(), bytes.data(), words.size() * sizeof(int64_t));
  return words;
}

int run_child(pid_t parent, int fd, const std::function<std::vector<int64_t>()>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) return 1;  // the parent died before prctl()
  bool is_written = false;
  tessera::record_errors([&] {
    is_written = write_all(fd, body());
    return 0;
  });
  return is_written ? 0 : 1;
}

}  // namespace

std::vector<int64_t> run_in_fresh_process(const std::function<std::vector<int64_t>()>& body) {
  int ends[2];
  if (pipe(ends) != 0) fail("pipe");
  std::fflush(stdout);  // otherwise the child prints it again
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    errno = error;
    fail("fork");
  }
  if (child == 0) {
    close(ends[0]);
    const int status = run_child(parent, ends[1], body);
    std::fflush(stdout);
    _exit(status);  // skips the parent's atexit handlers
  }
  close(ends[1]);
  std::vector<int64_t> words = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail("waitpid");
  }
  if (WIFSIGNALED(status)) {
    throw std::runtime_error(
        std::string("[memory_compare] the process of this configuration died of signal ") +
        std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")");
  }
  if (status != 0) {
    throw std::runtime_error(
        "[memory_compare] the process of this configuration failed; it has said why");
  }
  return words;
}

}  // namespace memory_compare
