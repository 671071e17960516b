#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Memory that the ranks of a group on one host share. Made by ProcessGroup::make_shared_buffer.
///
/// Each rank has two mappings of it. Writes through common() are seen by all ranks. view() shows
/// the common memory too, but writes through it are private to this rank (copy on write), so that a
/// write by mistake is no data race. A page (4 KiB) that this rank has written through view() no
/// longer shows changes of the common memory until drop_own_writes(). A read sees what a rank wrote
/// before a collective if both the reader and that rank have since taken part in that collective.
///
/// Tensors keep the memory alive, also after the buffer, its group and the other ranks are gone;
/// then nobody changes the common memory, and views are like private memory. In a child of fork()
/// every call throws c10::Error.
class SharedBuffer {
 public:
  virtual ~SharedBuffer() = default;
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  /// Local, do not block. Each returns a 1-d tensor of `numel` elements of `dtype` that begins at
  /// byte `offset_bytes` of common() or view(), as described above. `offset_bytes` must be aligned
  /// for the dtype. Throw c10::Error for a part that the buffer does not have.
  virtual at::Tensor common(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) = 0;
  virtual at::Tensor view(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) = 0;

  /// Local. Looks for writes of this rank through view(). Returns the offset of the first byte that
  /// differs from common() because of such a write; std::nullopt if none differs. Has a side
  /// effect: written pages that do not differ show the common memory again. No rank may write the
  /// common memory during the call. Costs a few nanoseconds per page. Throws c10::Error if the
  /// system does not show which pages were written.
  virtual std::optional<int64_t> find_own_write() = 0;

  /// Local. Makes all views of this rank show the common memory again. Throws c10::Error if the
  /// system refuses.
  virtual void drop_own_writes() = 0;

 protected:
  SharedBuffer() = default;
};

}  // namespace tessera
