#include "tessera/core/launch/caught_signals.h"

#include <semaphore.h>
#include <time.h>

#include <atomic>

namespace tessera::internal {
namespace {

// How often each signal has come, and a semaphore that each arrival posts. They are lock-free and
// static, because signal handlers use them.
constinit std::array<std::atomic<int>, NSIG> arrivals = {};
sem_t arrival;

void count_arrival(int signal) {
  arrivals[static_cast<size_t>(signal)].fetch_add(1);
  ::sem_post(&arrival);
}

}  // namespace

CaughtSignals::CaughtSignals() {
  ::sem_init(&arrival, 0, 0);
  sigset_t all;
  sigemptyset(&all);
  for (const int signal : kEnding) take_over(signal, all);
  for (const int signal : kPassedOn) take_over(signal, all);
  take_over(SIGCHLD, all);
  // Unblock the signals here, because if all threads blocked them, no handler would ever run.
  ::pthread_sigmask(SIG_UNBLOCK, &all, &mask_before_);
}

CaughtSignals::~CaughtSignals() {
  for (const auto& [signal, action] : before_) ::sigaction(signal, &action, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

void CaughtSignals::wait_until(
    const std::optional<std::chrono::steady_clock::time_point>& deadline) const {
  if (!deadline) {
    ::sem_wait(&arrival);
    return;
  }
  const auto since_boot = deadline->time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_boot);
  const timespec when{static_cast<time_t>(seconds.count()),
                      static_cast<long>(std::chrono::nanoseconds(since_boot - seconds).count())};
  ::sem_clockwait(&arrival, CLOCK_MONOTONIC, &when);
}

bool CaughtSignals::has_come(int signal) const {
  return arrivals[static_cast<size_t>(signal)].exchange(0) > 0;
}

void CaughtSignals::take_over(int signal, sigset_t& all) {
  struct sigaction before = {};
  ::sigaction(signal, nullptr, &before);
  // Signals that the process ignores stay ignored. SIGCHLD is caught even then, because while it is
  // ignored, the kernel discards how children ended.
  if (before.sa_handler == SIG_IGN && signal != SIGCHLD) return;
  struct sigaction action = {};
  action.sa_handler = count_arrival;
  action.sa_flags = SA_RESTART | (signal == SIGCHLD ? SA_NOCLDSTOP : 0);
  has_come(signal);  // discard a signal from an earlier launch
  ::sigaction(signal, &action, nullptr);
  before_.emplace_back(signal, before);
  sigaddset(&all, signal);
}

}  // namespace tessera::internal
