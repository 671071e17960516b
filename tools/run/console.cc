#include "tessera/tools/run/console.h"

#include <string.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::internal {

Console::Console()
    : out_(STDOUT_FILENO),
      own_err_(STDERR_FILENO),
      err_(are_same_file(STDOUT_FILENO, STDERR_FILENO) ? out_ : own_err_) {}

void Console::say(const std::string& message) {
  for (const absl::string_view line : absl::StrSplit(message, '\n')) {
    err_.append(absl::StrCat("tessera-run: ", line, "\n"));
  }
}

std::array<pollfd, 2> Console::polled() const {
  const auto entry = [](const Sink& sink) {
    return pollfd{sink.empty() ? -1 : sink.poll_fd(), POLLOUT, 0};
  };
  return {entry(out_), entry(own_err_)};
}

void Console::write_ready(const std::array<pollfd, 2>& polled) {
  for (const bool is_out : {true, false}) {
    if (polled[is_out ? 0 : 1].revents == 0) continue;
    if (const int error = (is_out ? out_ : own_err_).write_some(); error != 0) {
      say(absl::StrCat("cannot write to ", is_out ? "stdout" : "stderr", ": ", strerror(error),
                       "; what the workers write there is dropped from here on"));
    }
  }
}

}  // namespace tessera::internal
