#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/launch/exit_status.h"
#include "tessera/core/process/job_page.h"

namespace tessera::internal {

/// The state of one rank.
struct RankStatus {
  enum class State : uint8_t {
    kStarting,  ///< has made no group yet
    kRunning,   ///< computes, or does anything but wait for other ranks
    kWaiting,   ///< waits for other ranks
    kStopped,   ///< stopped by SIGSTOP or a debugger
    kSilent,    ///< has begun and finished nothing for a while
    kGone,      ///< its process has ended
  };

  int rank = 0;
  int pid = 0;  ///< 0: not known
  State state = State::kStarting;
  Phase phase = Phase::kOther;
  int64_t step = 0;
  std::optional<double> step_age_s;   ///< time since the last step ended
  std::optional<double> steps_per_s;  ///< over the last 15 steps at most
  std::optional<double> own_s;        ///< time per step without waits: Note [Straggler ratio]
  std::optional<double> ratio;        ///< own_s divided by its median over ranks
  std::optional<double> silent_s;     ///< time since its last sign of life; unset: none is expected
  std::optional<LongWait> wait;       ///< also set if it is stopped or silent during the wait
  double wait_s = 0.0;
  std::optional<ExitStatus> exit_status;  ///< if it is gone and the status is known
};

/// Note [Straggler ratio]
/// ~~~~~~~~~~~~~~~~~~~~~~
/// All ranks of a job take equally long for a step, because fast ranks wait for slow ones. They
/// differ in the time per step in which a rank does not wait for others: its step time, over its
/// last 15 steps at most, minus the time for which its calls blocked the training thread. The ratio
/// is that time divided by the median over ranks. For an even number of ranks the median is the
/// smaller of the two middle values, so of two ranks the fast one has 1 and the slow one more. A
/// rank that computes three times as long as the others has about 3. With NCCL, ranks wait on their
/// devices, where waits are not seen, so there is no ratio.

/// The present state of a job, read from its page.
struct JobStatus {
  JobOutline outline;
  int64_t saved_step = 0;  ///< 0: none, or not known
  double age_s = 0.0;      ///< time since this start of the job
  std::vector<RankStatus> ranks;
};

/// Returns the letter of a process's state (ProcessStatus); 0 if there is no such process.
using ProcessState = std::function<char(int pid)>;
char state_of_process(int pid);

/// Local. Reads the job's state from `page`. Other processes may have written anything there, so
/// the results are bounded and printable. `now_ns`: the monotonic clock.
JobStatus read_status(const JobPage& page, int64_t now_ns,
                      const ProcessState& state = state_of_process);

/// Returns "running", "waiting" and so on.
const char* state_name(RankStatus::State state);
/// Returns the rank's state, including the chain of ranks for which it waits: "waiting 12.3 s in
/// barrier #2 on group 'world' for rank 1, which waits in ... for rank 2, which is stopped".
std::string describe_state(const JobStatus& job, int rank);
/// Returns "12.3 s", "5 min 10 s" or "2 h 5 min".
std::string duration_text(double seconds);

}  // namespace tessera::internal
