#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "tessera/core/layout/throwing_storage.h"

namespace tessera::internal {

/// The memory of some tensors, which can be detached and attached while the tensors live. Each
/// tensor has its own storage, and all storages point into one block of memory (a unit's). Only the
/// data pointers change, not sizes, strides and storages, so all views and aliases of the tensors
/// follow. Every access to the data throws c10::Error with a given message while the buffer has no
/// memory, is forbidden or is protected, and always in a child of fork(). Not thread-safe.
class FreeableBuffer {
 public:
  /// Makes a buffer for [numel] elements of `dtype` on `device`, without memory and storages.
  /// Access without memory throws `access_error`.
  FreeableBuffer(int64_t numel, at::ScalarType dtype, at::Device device, std::string access_error);
  ~FreeableBuffer();
  FreeableBuffer(FreeableBuffer&& other) noexcept = default;
  FreeableBuffer(const FreeableBuffer&) = delete;
  FreeableBuffer& operator=(const FreeableBuffer&) = delete;

  /// Takes `storage` over and releases its data. From then on the storage is the part of this
  /// buffer that begins at element `begin`, with the storage's nbytes() bytes, and cannot be
  /// resized. Call it only while the buffer has no memory.
  void adopt(c10::Storage storage, int64_t begin);
  size_t size() const { return parts_.size(); }
  const c10::Storage& storage(size_t part) const { return parts_[part].storage.storage(); }
  /// Returns true if storage `part` still points into this buffer's memory.
  bool is_intact(size_t part) const;

  /// has_memory() returns true between attach() and detach(). attach() takes `memory` (1-d,
  /// contiguous, with the buffer's numel and dtype) and keeps it alive; detach() returns it.
  bool has_memory() const { return memory_.defined(); }
  void attach(at::Tensor memory);
  at::Tensor detach();
  /// Replaces the attached memory by `memory` and returns the old one. The data pointers are valid
  /// at every moment of the call, because an operator that has already started may read them then.
  at::Tensor replace(at::Tensor memory);
  /// Returns the attached memory, readable also while forbidden; undefined if there is none.
  const at::Tensor& memory() const { return memory_; }

  /// Makes accesses throw `error` until permit(), even if the buffer has memory. Calls do not nest.
  void forbid(const std::string& error);
  void permit();
  bool is_forbidden() const { return is_forbidden_; }

  /// Makes accesses throw `error` until unprotect(), whatever attach() and permit() do.
  void protect(std::string error);
  void unprotect();
  bool is_protected() const { return !protection_error_.empty(); }

  /// Sets the `error` that an access without memory throws from now on.
  void set_access_error(std::string error);
  const std::string& access_error() const { return access_error_; }

 private:
  struct Part {
    ThrowingStorage storage;
    int64_t begin;  // index, in the memory, of the part's first element
  };

  void deny(const std::string& error);
  void update_access();
  void point_to_memory(ThrowingStorage::Access access);
  char* data_of(const Part& part) const;

  int64_t numel_;
  at::ScalarType dtype_;
  at::Device device_;
  std::vector<Part> parts_;
  at::Tensor memory_;
  std::string access_error_;
  std::string protection_error_;  // "": not protected
  bool is_forbidden_ = false;
};

}  // namespace tessera::internal
