#include "tessera/tools/run/restart_policy.h"

#include <sysexits.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::internal {
namespace {

constexpr std::chrono::milliseconds kLongestPause(30000);

/// Returns true if the exit code says that another start would end in the same way.
bool is_of_configuration(int exit_code) {
  return exit_code == EX_USAGE || exit_code == EX_DATAERR || exit_code == EX_NOINPUT ||
         exit_code == EX_NOPERM || exit_code == EX_CONFIG;
}

}  // namespace

RestartPolicy::RestartPolicy(int most, std::chrono::milliseconds backoff)
    : most_(most), first_pause_(backoff), pause_(backoff) {}

RestartPolicy::Decision RestartPolicy::after(const AttemptEnd& end) {
  const AttemptEnd before = std::exchange(last_, end);
  if (most_ == 0 || !end.is_failure) return {};
  const auto refuse = [](const auto&... why) {
    return Decision{.text = absl::StrCat("not starting again: ", why...)};
  };
  if (is_of_configuration(end.exit_code)) {
    return refuse("exit code ", end.exit_code,
                  " says that the command line, the configuration or its files are wrong");
  }
  if (end.has_trained && before.has_trained && end.step == before.step &&
      end.exit_code == before.exit_code) {
    return refuse("the start before failed in the same way, after the same step ", end.step);
  }
  std::string refund;
  if (end.saved_step > saved_step_) {
    saved_step_ = end.saved_step;
    if (used_ > 0) refund = absl::StrCat("; counted anew, as step ", saved_step_, " is saved");
    used_ = 0;
    pause_ = first_pause_;
  }
  if (used_ == most_) {
    return refuse(most_, most_ == 1 ? " restart" : " restarts", " without a newly saved step");
  }
  ++used_;
  const std::chrono::milliseconds pause = pause_;
  pause_ = std::min(2 * pause, std::max(first_pause_, kLongestPause));
  return {.restarts = true,
          .pause = pause,
          .text = absl::StrCat("starting again in ", static_cast<double>(pause.count()) / 1000,
                               " s (restart ", used_, " of ", most_, refund, ")")};
}

}  // namespace tessera::internal
