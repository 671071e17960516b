#include "tessera/tools/run/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tessera/core/launch/random_text.h"
#include "tessera/core/launch/worker_environment.h"
#include "tessera/core/process/error_file.h"
#include "tessera/tools/run/restart_policy.h"

namespace tessera::internal {
namespace {

using std::chrono::milliseconds;

/// How long a terminal that accepts no output may delay the end of a finished job.
constexpr milliseconds kFlush(20000);

}  // namespace

Launcher::Launcher(Job job) : job_(std::move(job)) { job_.run_id = random_text(); }

int Launcher::run() {
  auto signals = SignalInbox::open();
  if (!signals.ok()) {
    console_.say(std::string(signals.status().message()));
    console_.err().write_some();
    return kSystemExit;
  }
  // Adopts orphans of the workers, so that they are reaped even if the launcher is not process 1.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const int exit_code = run_attempts(*signals);
  wait(*signals, kFlush, /*may_end=*/true);
  return exit_code;
}

int Launcher::run_attempts(SignalInbox& signals) {
  RestartPolicy policy(job_.line.max_restarts, milliseconds(job_.line.backoff_ms));
  for (int number = 0;; ++number) {
    const AttemptEnd end = Attempt(job_, number, console_, signals).run();
    const RestartPolicy::Decision decision = policy.after(end);
    if (!decision.text.empty()) console_.say(decision.text);
    if (!decision.restarts) {
      // As torchrun does: PyTorchJob shows this file if the pod has failed.
      const std::string path = value_of(job_.inherited, "TORCHELASTIC_ERROR_FILE");
      if (!path.empty() && !end.cause.empty() && !job_.line.supervise) {
        if (const std::string problem = write_error_file(path, end.cause); !problem.empty()) {
          console_.say(problem);
        }
      }
      return end.exit_code;
    }
    if (const auto signal = wait(signals, decision.pause, /*may_end=*/false)) {
      console_.say(absl::StrCat("got ", signal_name(*signal), "; not starting again"));
      return 128 + *signal;
    }
  }
}

/// Writes pending output and reaps children while no worker runs: for `pause` or, if `may_end`,
/// until all is written. Returns at once if a signal ends the job.
std::optional<int> Launcher::wait(SignalInbox& signals, milliseconds pause, bool may_end) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + pause;
  for (bool is_over = false; !(may_end && console_.empty());) {
    while (const std::optional<int> signal = signals.next()) {
      if (*signal == SIGCHLD) {
        while (waitpid(-1, nullptr, WNOHANG) > 0) continue;
      } else if (*signal != SIGUSR1 && *signal != SIGUSR2) {
        return *signal;
      }
    }
    if (is_over) break;
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    is_over = left <= 0;
    std::array<pollfd, 2> sinks = console_.polled();
    std::array<pollfd, 3> polled = {sinks[0], sinks[1], {signals.poll_fd(), POLLIN, 0}};
    const int timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1000000));
    if (poll(polled.data(), polled.size(), timeout_ms) <= 0) continue;
    console_.write_ready({polled[0], polled[1]});
  }
  return std::nullopt;
}

}  // namespace tessera::internal
