#pragma once

namespace tessera::internal {

/// While it lives, functions of the user's run inside `call`: a schedule, a predicate, a sink. What
/// they call of the engine would find it half way, or, where it is built anew, gone; so it is
/// refused there. One at a time.
class RunningCall {
 public:
  /// Sets `running` to `call`, and back to null at the end.
  RunningCall(const char*& running, const char* call) : running_(running) { running_ = call; }
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;
  ~RunningCall() { running_ = nullptr; }

 private:
  const char*& running_;
};

}  // namespace tessera::internal
