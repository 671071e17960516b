#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/Storage.h>

#include "tessera/core/process/fork.h"

namespace tessera::internal {

/// What hides operators from every observer, for error texts.
inline constexpr const char* kWhatHidesOperators =
    "at::clearCallbacks(), at::RecordFunctionGuard(false) or at::enableRecordFunction(false)";

/// Something whose storage must be made ready before an operator uses it: a unit. Called on the
/// thread that runs the operator, possibly on several threads at once.
class AccessTarget {
 public:
  virtual ~AccessTarget() = default;

  enum class Use : uint8_t { kRead, kWrite };

  /// An operator holds a Pin of each of its targets while it runs.
  class Pin {
   public:
    /// Called when the operator that pinned it, for the same use, has ended.
    virtual void unpin(Use use) noexcept = 0;

   protected:
    ~Pin() = default;
  };

  /// Called before an operator uses the storage. Returns what to unpin at its end. Must not throw:
  /// LibTorch swallows what observers throw, so a failure is left in the storage
  /// (FreeableBuffer::forbid).
  virtual Pin& pin(Use use) noexcept = 0;
};

/// Observes, in the whole process, which storages operators read and write: every ATen operator
/// whose inputs include a storage in `storages`, also a nested operator, pins its target while it
/// runs. Operators that only make views (t, view, detach, ...) pin nothing. Observation lasts as
/// long as the object. An operator that started before its end on another thread may still pin and
/// unpin later, and keeps its targets alive. While any observer lives, each operator of the process
/// costs about 110 ns more, one with a watched input about 150. Construction and destruction are
/// thread-safe. Note [Access observer] in access_observer.cc.
class AccessObserver {
 public:
  struct Watched {
    c10::Storage storage;  // held, because a reused address would be a false hit
    std::shared_ptr<AccessTarget> target;
    Origin origin = {};  // in children of fork() nothing is watched
  };
  explicit AccessObserver(std::vector<Watched> storages);
  ~AccessObserver();
  AccessObserver(const AccessObserver&) = delete;
  AccessObserver& operator=(const AccessObserver&) = delete;

 private:
  std::vector<Watched> storages_;
};

}  // namespace tessera::internal
