#pragma once

namespace tessera::internal {

/// While it lives, functions of the user's (a schedule, a predicate, a sink) run inside `call`. The
/// engine refuses their calls, because they would find it half changed or, where it is built anew,
/// gone. One at a time.
class RunningCall {
 public:
  /// Sets `running` to `call`; the destructor sets it to null.
  RunningCall(const char*& running, const char* call) : running_(running) { running_ = call; }
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;
  ~RunningCall() { running_ = nullptr; }

 private:
  const char*& running_;
};

}  // namespace tessera::internal
