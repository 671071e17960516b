#pragma once

#include <signal.h>

#include <array>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::internal {

/// While one lives, signals that concern a launch are counted instead of what they did before:
/// those that end a job, those that are passed on, SIGCHLD. One at a time, in a process that may
/// have threads that do not block them. Those that are ignored stay ignored, as under nohup. Has no
/// descriptor, whose number may be another's when a handler in another thread comes to write.
class CaughtSignals {
 public:
  static constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  static constexpr std::array kPassedOn = {SIGUSR1, SIGUSR2};

  /// Local. The calling thread blocks none of them until the end.
  CaughtSignals();
  /// Puts back what they did, and what the thread blocks.
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;

  /// Blocks until one has come or the deadline has passed, or for less.
  void wait_until(const std::optional<std::chrono::steady_clock::time_point>& deadline) const;
  /// Whether it has come since this was last asked. Does not block.
  bool has_come(int signal) const;

 private:
  void take_over(int signal, sigset_t& all);

  std::vector<std::pair<int, struct sigaction>> before_;
  sigset_t mask_before_;
};

}  // namespace tessera::internal
