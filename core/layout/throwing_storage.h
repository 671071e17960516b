#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace tessera::internal {

/// A storage of somebody's tensors whose data can be barred and given back: while it is barred,
/// every access by whatever means throws c10::Error with a text of ours. In a child of fork() it is
/// barred for good, with a text that says so. Not thread-safe.
///
/// Note [Throwing storage]
/// StorageImpl can throw a custom message on every access to its data pointer; LibTorch offers to
/// set that state and not to leave it. So the flags, private members, are reached by explicit
/// instantiation of a template with their addresses (standard C++: access is not checked there) and
/// toggled. For children of fork() each storage has its message ready beforehand, because what runs
/// there may set words only: it sets the flags and exchanges two strings.
class ThrowingStorage {
 public:
  /// Takes `storage` over, barred with `error`, and lets its data go. It cannot be resized any
  /// more.
  ThrowingStorage(c10::Storage storage, at::Device device, const std::string& error);
  ~ThrowingStorage();
  ThrowingStorage(ThrowingStorage&&) noexcept;
  ThrowingStorage& operator=(ThrowingStorage&&) = delete;

  const c10::Storage& storage() const;
  /// Where it points, barred or not.
  void* data() const;

  enum class Access : bool { kBarred, kGiven };
  void point_to(c10::DataPtr data, Access access);

  /// Bars it with `error`. A text that it has already stays as it is: another thread may be about
  /// to throw it.
  void bar(const std::string& error);

  /// Whether an object of this type has `storage` now. Any thread; walks through all of them.
  static bool has_taken(const c10::Storage& storage);

 private:
  class Entry;
  class Entries;

  std::unique_ptr<Entry> entry_;
};

}  // namespace tessera::internal
