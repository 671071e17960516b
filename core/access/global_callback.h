#pragma once

#include <ATen/record_function.h>

namespace tessera::internal {

/// A callback that LibTorch calls in all threads, from construction to destruction of this object.
/// If exit() has begun, the destructor leaves the callback installed, because LibTorch's list of
/// callbacks may be gone already. Thread-safe.
class GlobalCallback {
 public:
  explicit GlobalCallback(at::RecordFunctionCallback callback);
  ~GlobalCallback();
  GlobalCallback(const GlobalCallback&) = delete;
  GlobalCallback& operator=(const GlobalCallback&) = delete;

 private:
  const at::CallbackHandle handle_;
};

}  // namespace tessera::internal
