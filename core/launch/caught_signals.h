#pragma once

#include <signal.h>

#include <array>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::internal {

/// While an object lives, it counts the signals that end a job, the signals that are passed on to
/// ranks, and SIGCHLD. The previous actions of these signals do not run. Ignored signals other than
/// SIGCHLD stay ignored, as under nohup. One object at a time; other threads may leave the signals
/// unblocked. Uses no descriptor, because a handler in another thread could write to it after its
/// number has been reused.
class CaughtSignals {
 public:
  static constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  static constexpr std::array kPassedOn = {SIGUSR1, SIGUSR2};

  /// Local. Catches the signals, and unblocks them in the calling thread, until destruction.
  CaughtSignals();
  /// Restores the previous actions and the calling thread's signal mask.
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;

  /// Blocks until a signal has come or the deadline has passed; may return early.
  void wait_until(const std::optional<std::chrono::steady_clock::time_point>& deadline) const;
  /// Returns true if `signal` has come since the last call. Does not block.
  bool has_come(int signal) const;

 private:
  void take_over(int signal, sigset_t& all);

  std::vector<std::pair<int, struct sigaction>> before_;
  sigset_t mask_before_;
};

}  // namespace tessera::internal
