#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Memory that the ranks of a group on one host have once, together: it is counted once, whoever
/// uses it. Made by ProcessGroup::make_shared_buffer.
///
/// Each rank has two ways to it. What it writes by way of common() is everybody's. By way of view()
/// it reads what is common; what it writes there only it sees, so that a stray write is no race. A
/// page (4 KiB) that it wrote so no longer follows the common memory until drop_own_writes().
/// Reads see what was written before any collective that both ranks have taken part in since.
///
/// Tensors keep the memory alive, also after the buffer, its group and the other ranks are gone;
/// then nobody changes the common memory any more and the views are as good as private memory. In a
/// child of fork() every call throws c10::Error.
class SharedBuffer {
 public:
  virtual ~SharedBuffer() = default;
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  /// Local, do not block. Elements [0, numel) of `dtype` from byte `offset_bytes` on (aligned for
  /// the dtype), 1-d. Throw c10::Error for a part that the buffer does not have.
  virtual at::Tensor common(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) = 0;
  virtual at::Tensor view(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) = 0;

  /// Local. The first byte in which view() differs from common() because this rank wrote it by way
  /// of view(), if any; pages that it wrote without changing them follow the common memory again.
  /// Called while nobody writes what is common. Costs a few nanoseconds per page. Throws c10::Error
  /// if the system does not tell what was written.
  virtual std::optional<int64_t> find_own_write() = 0;

  /// Local. Views show the common memory again. Throws c10::Error if the system refuses.
  virtual void drop_own_writes() = 0;

 protected:
  SharedBuffer() = default;
};

}  // namespace tessera
