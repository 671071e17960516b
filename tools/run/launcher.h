#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "tessera/tools/run/attempt.h"
#include "tessera/tools/run/console.h"
#include "tessera/tools/run/signal_inbox.h"

namespace tessera::internal {

/// Starts a job, and restarts it if RestartPolicy says so. docs/launching.md describes what users
/// see. One per process; the process has one thread and makes no other children.
class Launcher {
 public:
  explicit Launcher(Job job);

  /// Runs the job to its end and returns the exit code for the process. Blocks. When it returns,
  /// nothing of the job is left except processes that left their group or that the kernel cannot
  /// kill.
  int run();

 private:
  int run_attempts(SignalInbox& signals);
  std::optional<int> wait(SignalInbox& signals, std::chrono::milliseconds pause, bool may_end);

  Job job_;
  Console console_;
};

}  // namespace tessera::internal
