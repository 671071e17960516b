#pragma once

#include <poll.h>

#include <array>
#include <string>

#include "tessera/tools/run/sink.h"

namespace tessera::internal {

/// The launcher's stdout and stderr, for all attempts. One per process.
class Console {
 public:
  Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  Sink& out() { return out_; }
  /// Returns the sink of stderr. It is stdout's if both are one file, so that one sink knows what
  /// came last on the terminal.
  Sink& err() { return err_; }
  /// Appends the lines of `message` to stderr, each marked as the launcher's own.
  void say(const std::string& message);

  /// Returns true if everything is written.
  bool empty() const { return out_.empty() && own_err_.empty(); }
  /// Returns the descriptors to poll. Pass them to write_ready(), which writes as much as they
  /// accept, and reports when nothing reads them any more.
  std::array<pollfd, 2> polled() const;
  void write_ready(const std::array<pollfd, 2>& polled);

 private:
  Sink out_;
  Sink own_err_;
  Sink& err_;
};

}  // namespace tessera::internal
