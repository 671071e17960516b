#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "tessera/core/process/error_text.h"

namespace tessera::internal::testing {

/// How a child of fork() ended.
struct ForkedChild {
  int exit_code = -1;  ///< 128 + signal if a signal ended it; SIGALRM ends a child that hangs
  std::string text;    ///< what its body returned, or the error that it threw
};

/// Forks. The child runs `body`, sends its result back and exits without unwinding. Blocks until
/// then. Other threads may exist if they hold no lock.
inline ForkedChild run_in_fork(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) {
    ::alarm(40);
    ::close(ends[0]);
    std::string text;
    int code = 0;
    try {
      text = body();
    } catch (const std::exception& error) {
      text = "left by an exception: " + error_text(error);
      code = 1;
    }
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t count = ::write(ends[1], text.data() + sent, text.size() - sent);
      if (count <= 0) break;
      sent += static_cast<size_t>(count);
    }
    ::_exit(code);
  }
  ::close(ends[1]);
  ForkedChild child;
  char buffer[512];
  for (ssize_t count; (count = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
    child.text.append(buffer, static_cast<size_t>(count));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  child.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return child;
}

}  // namespace tessera::internal::testing
