#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera::internal {

/// How one attempt, that is one start of the ranks, ended.
struct AttemptEnd {
  int exit_code = 0;
  /// True if a rank failed without a signal to the launcher and without a failure of the launcher,
  /// and nothing of the attempt is left.
  bool is_failure = false;
  /// The first failure: "rank 1 (pid 12) exited with code 3 after step 137"; "" if there was none.
  std::string cause = {};
  /// The number of steps that the failed rank had trained, including those of a loaded state;
  /// whether it trained one in this attempt; the last step that the job has saved. 0: not known.
  int64_t step = 0;
  bool has_trained = false;
  int64_t saved_step = 0;
};

/// Decides whether a failed job starts again, and after how long. A job that keeps saving steps may
/// fail as often as it likes; a job that makes no progress soon ends, with the reason. Local, reads
/// no clock.
class RestartPolicy {
 public:
  /// Allows at most `most` restarts without a newly saved step between them. The first pause is
  /// `backoff`; each following one is twice as long, up to 30 s.
  RestartPolicy(int most, std::chrono::milliseconds backoff);

  struct Decision {
    bool restarts = false;
    std::chrono::milliseconds pause{0};
    std::string text = {};  ///< message for the user; "" if none
  };
  /// Returns what to do after an attempt. Call it after every attempt.
  Decision after(const AttemptEnd& end);

 private:
  const int most_;
  const std::chrono::milliseconds first_pause_;
  std::chrono::milliseconds pause_;
  int used_ = 0;  // restarts since the job last saved a new step
  int64_t saved_step_ = 0;
  AttemptEnd last_;
};

}  // namespace tessera::internal
