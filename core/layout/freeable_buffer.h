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
/// tensor has a storage of its own, which points into one block of memory (a unit's). Sizes,
/// strides and storages stay, only the data pointers change, so all views and aliases of the
/// tensors follow. Without memory, while forbidden and while protected, every access to the data
/// throws c10::Error with a given message. In a child of fork() it always does. Not thread-safe.
class FreeableBuffer {
 public:
  /// Of [numel] elements of `dtype` at `device`, without memory and storages; `access_error` is
  /// what an access without memory throws.
  FreeableBuffer(int64_t numel, at::ScalarType dtype, at::Device device, std::string access_error);
  ~FreeableBuffer();
  FreeableBuffer(FreeableBuffer&& other) noexcept = default;
  FreeableBuffer(const FreeableBuffer&) = delete;
  FreeableBuffer& operator=(const FreeableBuffer&) = delete;

  /// Only without memory: takes `storage` over and releases its data. From then on its data are its
  /// nbytes() bytes from element `begin` on. It can no longer be resized.
  void adopt(c10::Storage storage, int64_t begin);
  size_t size() const { return parts_.size(); }
  const c10::Storage& storage(size_t part) const { return parts_[part].storage.storage(); }
  /// Whether storage `part` still points into this buffer's memory.
  bool is_intact(size_t part) const;

  /// Whether it has memory. attach() takes `memory` (1-d, contiguous, equal numel and dtype) and
  /// keeps it alive, detach() gives it back.
  bool has_memory() const { return memory_.defined(); }
  void attach(at::Tensor memory);
  at::Tensor detach();
  /// Attaches `memory` in place of the attached memory, which it returns. The data pointers are
  /// valid at all times, for operators that have started but not yet read them.
  at::Tensor replace(at::Tensor memory);
  /// The memory itself, readable whether forbidden or not; undefined without.
  const at::Tensor& memory() const { return memory_; }

  /// Until permit(), accesses throw `error` even though there is memory. Calls do not nest.
  void forbid(const std::string& error);
  void permit();
  bool is_forbidden() const { return is_forbidden_; }

  /// Until unprotect(), accesses throw `error`, whatever attach() and permit() do.
  void protect(std::string error);
  void unprotect();
  bool is_protected() const { return !protection_error_.empty(); }

  /// From now on an access without memory throws `error`.
  void set_access_error(std::string error);
  const std::string& access_error() const { return access_error_; }

 private:
  struct Part {
    ThrowingStorage storage;
    int64_t begin;  // element of the memory
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
