#pragma once

#include <ATen/record_function.h>

namespace tessera::internal {

/// A callback that LibTorch calls in all threads, from construction to destruction of this object.
/// If exit() has begun, the destructor leaves the callback installed, because LibTorch's list of
/// callbacks may be gone already. Construction and destruction are thread-safe.
class GlobalCallback {
 public:
  explicit GlobalCallback(at::RecordFunctionCallback callback);
  ~GlobalCallback();
  GlobalCallback(const GlobalCallback&) = delete;
  GlobalCallback& operator=(const GlobalCallback&) = delete;

  /// Turns the callback on or off; it begins on. While no callback of a scope is on, LibTorch makes
  /// no RecordFunction there. One thread at a time.
  void turn(bool on);

 private:
  const at::CallbackHandle handle_;
  bool is_on_ = true;
};

}  // namespace tessera::internal
