#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/Storage.h>

#include "tessera/core/process/fork.h"

namespace tessera::internal {

/// Lists, for error texts, which accesses no observer sees.
inline constexpr const char* kWhatIsNotSeen =
    "a raw pointer, a fused kernel, or a tensor made of the storage itself (set_())";

/// Something whose storage must be made ready before an operator uses it, such as a unit. Its
/// functions are called on the thread that runs the operator, possibly on several threads at once.
class AccessTarget {
 public:
  virtual ~AccessTarget() = default;

  enum class Use : uint8_t { kRead, kWrite };

  /// Each operator holds a Pin of each of its targets while it runs.
  class Pin {
   public:
    /// Called when the operator that pinned the target has ended. `use` is what pin() was called
    /// with.
    virtual void unpin(Use use) noexcept = 0;

   protected:
    ~Pin() = default;
  };

  /// Called before an operator uses the storage. Returns the pin to release when the operator ends.
  /// Must not throw, because LibTorch swallows what observers throw; a failure is stored in the
  /// storage (FreeableBuffer::forbid) instead.
  virtual Pin& pin(Use use) noexcept = 0;
};

/// Observes in the whole process which storages operators read and write. Every ATen operator,
/// nested ones included, that has a storage in `storages` among its inputs pins the storage's
/// target while it runs. Operators that only make views (t, view, detach, ...) pin nothing.
/// Observation lasts as long as the object. An operator that another thread began before the object
/// is destroyed may still pin and unpin afterwards, and keeps its targets alive. Construction and
/// destruction are thread-safe.
///
/// The observer sees inputs that carry the access key (access_key.h). If a storage also has tensors
/// without the key, say so: while it is watched, LibTorch calls back for every operator of the
/// process, which costs each 0.1 to 0.9 us. Note [Access observer] in access_observer.cc.
class AccessObserver {
 public:
  struct Watched {
    c10::Storage storage;  // held, so that no other storage gets its address
    std::shared_ptr<AccessTarget> target;
    bool has_unkeyed = false;  // there are tensors of the storage that do not carry the access key
    Origin origin = {};        // the process that watches; children of fork() do not
  };
  explicit AccessObserver(std::vector<Watched> storages);
  ~AccessObserver();
  AccessObserver(const AccessObserver&) = delete;
  AccessObserver& operator=(const AccessObserver&) = delete;

 private:
  std::vector<Watched> storages_;
};

/// Returns true if observers see tensors with the access key; false if other code of the process
/// has a kernel for the key.
bool observes_keys();

}  // namespace tessera::internal
