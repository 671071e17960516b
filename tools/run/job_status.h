#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/launch/exit_status.h"
#include "tessera/core/process/job_page.h"

namespace tessera::internal {

/// What one rank does.
struct RankStatus {
  enum class State : uint8_t {
    kStarting,  ///< has made no group yet
    kRunning,   ///< computes, or does whatever does not wait for other ranks
    kWaiting,   ///< waits for other ranks
    kStopped,   ///< by SIGSTOP or a debugger
    kSilent,    ///< has begun and finished nothing for a while
    kGone,      ///< its process has ended
  };

  int rank = 0;
  int pid = 0;  ///< 0: not known
  State state = State::kStarting;
  Phase phase = Phase::kOther;
  int64_t step = 0;
  std::optional<double> step_age_s;   ///< since the last step that ended
  std::optional<double> steps_per_s;  ///< over the last ones, 15 at most
  std::optional<double> own_s;        ///< Note [Straggler ratio]: per step, without waits
  std::optional<double> ratio;        ///< of that to the median
  std::optional<double> silent_s;     ///< since it said anything; nothing: it need not
  std::optional<LongWait> wait;       ///< also of one that is stopped or silent in it
  double wait_s = 0.0;
  std::optional<ExitStatus> exit_status;  ///< of one that is gone, where it is known
};

/// Note [Straggler ratio]
/// ~~~~~~~~~~~~~~~~~~~~~~
/// All ranks of a job take equally long for a step, because the fast ones wait for the slow ones.
/// So what tells them apart is the time per step in which a rank does not wait for others: its step
/// time, over its last 15 steps at most, minus what its calls blocked the thread that trains. The
/// ratio is that time over the median of the ranks; of an even number of them, the smaller one in
/// the middle, so that of two ranks the slow one has more than 1 and the fast one 1. A rank that
/// computes three times as long as the others has about 3. Over NCCL ranks wait on their devices,
/// where it is not seen, and there is no ratio.

/// A job as its page shows it now.
struct JobStatus {
  JobOutline outline;
  int64_t saved_step = 0;  ///< 0: none, or not known
  double age_s = 0.0;      ///< of this start of the job
  std::vector<RankStatus> ranks;
};

/// The letter of a process's state (ProcessStatus), 0 if there is none such.
using ProcessState = std::function<char(int pid)>;
char state_of_process(int pid);

/// Local. Of a page that anyone may have written: what it says is bounded and printable.
/// `now_ns`: the monotonic clock.
JobStatus read_status(const JobPage& page, int64_t now_ns,
                      const ProcessState& state = state_of_process);

/// "running", "waiting" and so on.
const char* state_name(RankStatus::State state);
/// What the rank does, with the whole truth of whom it waits for: "waiting 12.3 s in barrier #2 on
/// group 'world' for rank 1, which waits in ... for rank 2, which is stopped".
std::string describe_state(const JobStatus& job, int rank);
/// "12.3 s", "5 min 10 s", "2 h 5 min".
std::string duration_text(double seconds);

}  // namespace tessera::internal
