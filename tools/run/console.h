#pragma once

#include <poll.h>

#include <array>
#include <string>

#include "tessera/tools/run/sink.h"

namespace tessera::internal {

/// The launcher's stdout and stderr, through all attempts. One per process.
class Console {
 public:
  Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  Sink& out() { return out_; }
  /// That of stdout where both are one file: so it knows what came last on the terminal.
  Sink& err() { return err_; }
  /// Appends the lines of `message` to stderr, each as the launcher's own.
  void say(const std::string& message);

  /// Whether all is written.
  bool empty() const { return out_.empty() && own_err_.empty(); }
  /// What to poll, and then to hand to write_ready(), which writes what the descriptors take and
  /// says so when nobody takes any more.
  std::array<pollfd, 2> polled() const;
  void write_ready(const std::array<pollfd, 2>& polled);

 private:
  Sink out_;
  Sink own_err_;
  Sink& err_;
};

}  // namespace tessera::internal
