#pragma once

namespace tessera::internal {

/// While it lives, the engine runs a user's function (a schedule, a predicate, a sink) inside
/// `call`. The engine refuses calls from this function, because they would find the engine half
/// changed or, during a rebuild, gone. Only one RunningCall may live at a time.
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
