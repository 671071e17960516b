#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace tessera {

/// Something whose storage must be made ready before an operator uses it: a unit. Called on
/// whatever thread runs the operator, possibly several at once.
class AccessTarget {
 public:
  virtual ~AccessTarget() = default;

  enum class Use : uint8_t { kRead, kWrite };

  /// An operator that uses the storage is about to run. Must not throw: LibTorch swallows what
  /// observers throw, so a failure has to be left in the storage (FreeableBuffer::forbid).
  virtual void pin(Use use) noexcept = 0;
  /// That operator has ended.
  virtual void unpin(Use use) noexcept = 0;
};

/// Watches which storages operators read and write, process-wide: every ATen operator whose inputs
/// include a storage in `storages` pins its target for as long as it runs, nested operators too.
/// Operators that only make views (t, view, detach, ...) pin nothing. Observation lasts as long as
/// the object; while any lives, each operator of the process costs about 110 ns more, one with a
/// watched input about 150. Making and destroying is thread-safe. Note [Access observer] in
/// access_observer.cc.
class AccessObserver {
 public:
  struct Watched {
    c10::intrusive_ptr<c10::StorageImpl> storage;  // held: a reused address would be a false hit
    AccessTarget* target;                          // must outlive the observer
  };
  explicit AccessObserver(std::vector<Watched> storages);
  ~AccessObserver();
  AccessObserver(const AccessObserver&) = delete;
  AccessObserver& operator=(const AccessObserver&) = delete;

 private:
  std::vector<Watched> storages_;
};

}  // namespace tessera
