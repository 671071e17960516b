#pragma once

#include <memory>
#include <string>

#include <c10/core/Storage.h>

namespace tessera::internal {

/// A storage of user tensors to which access can be denied: then every access to its data throws
/// c10::Error with a given message. In a child of fork() access is denied for good, with a message
/// that says so. Not thread-safe.
///
/// Note [Throwing storage]
/// StorageImpl can throw a custom message on every access to its data pointer; LibTorch has a
/// function to enter that state but none to leave it. So we toggle the flags, which are private
/// members, by explicit instantiation of a template with their addresses (the C++ standard does not
/// check access there). Each storage has its message for children of fork() ready beforehand,
/// because the fork handler must not allocate: it only sets the flags and swaps two strings.
class ThrowingStorage {
 public:
  /// Takes `storage` over, denies access with `error`, and releases the data. From then on
  /// `storage` cannot be resized.
  ThrowingStorage(c10::Storage storage, at::Device device, const std::string& error);
  ~ThrowingStorage();
  ThrowingStorage(ThrowingStorage&&) noexcept;
  ThrowingStorage& operator=(ThrowingStorage&&) = delete;

  const c10::Storage& storage() const;
  /// Returns the address to which the storage points, even while access is denied.
  void* data() const;

  enum class Access : bool { kDenied, kAllowed };
  void point_to(c10::DataPtr data, Access access);

  /// Denies access with `error`. Does not rewrite the text if it is equal, because another thread
  /// may be about to throw it.
  void deny(const std::string& error);

  /// Returns true if a live ThrowingStorage has taken `storage` over. Any thread.
  static bool has_taken(const c10::Storage& storage);

 private:
  class Entry;
  class Entries;

  std::unique_ptr<Entry> entry_;
};

}  // namespace tessera::internal
