#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera::internal {

/// How one attempt, a start of the ranks, ended.
struct AttemptEnd {
  int exit_code = 0;
  /// Whether a rank failed, without a signal to the launcher and without a fault of its own, and
  /// nothing of the attempt is left.
  bool is_failure = false;
  /// What failed first, "" if nothing: "rank 1 (pid 12) exited with code 3 after step 137".
  std::string cause = {};
  /// How many steps that rank had trained, those of a loaded state included, and whether it trained
  /// one in this attempt; the last step that the job has saved. 0: not known.
  int64_t step = 0;
  bool has_trained = false;
  int64_t saved_step = 0;
};

/// Decides whether a job that failed starts again, and after how long. A job that saves steps may
/// fail as often as it likes; one that does not get further ends soon, with the reason. Local,
/// knows no clock.
class RestartPolicy {
 public:
  /// At most `most` restarts without a step saved between them. The first pause is `backoff`; each
  /// next one is twice as long, up to 30 s.
  RestartPolicy(int most, std::chrono::milliseconds backoff);

  struct Decision {
    bool restarts = false;
    std::chrono::milliseconds pause{0};
    std::string text = {};  ///< what the user is told; "" if nothing
  };
  /// What to do after an attempt, each of which it is told of.
  Decision after(const AttemptEnd& end);

 private:
  const int most_;
  const std::chrono::milliseconds first_pause_;
  std::chrono::milliseconds pause_;
  int used_ = 0;  // since a step was saved that none before was
  int64_t saved_step_ = 0;
  AttemptEnd last_;
};

}  // namespace tessera::internal
