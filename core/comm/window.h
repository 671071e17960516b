#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace tessera {

/// A buffer of every rank of a group that every rank may read at any time without the owner taking
/// part (one-sided). Made by ProcessGroup::make_window.
///
/// Reads see what the owner wrote before any collective that both ranks have taken part in since.
/// Who guards against reading while the owner writes is the caller (epochs, fences). A window keeps
/// the buffers readable by itself: after its group is gone, and after an owner has left, reads work
/// on and give what the owner's memory held last. Thread-safe: several threads of a rank may read
/// at once.
class Window {
 public:
  virtual ~Window() = default;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  /// Local; blocks only while it copies. Copies elements [begin, begin + to.numel()) of rank
  /// `rank`'s buffer into `to` (1-d, contiguous, on the CPU, of the window's dtype; its memory may
  /// lie anywhere). `tag` names the unit in errors and traces. Throws CommError (op "read", no
  /// sequence) if the group or its world has failed, also when the group is gone; c10::Error for a
  /// rank, range or tensor that the window does not have.
  virtual void read(int rank, int64_t begin, const at::Tensor& to, std::string_view tag = {}) = 0;

 protected:
  Window() = default;
};

/// Throws c10::Error unless `own` may become a rank's buffer of a window. Every backend begins with
/// this.
void check_window(const at::Tensor& own, std::string_view name);

/// Throws c10::Error unless `to` may be read from element `begin` on of rank `rank`'s buffer of
/// `numel` elements of `dtype`, in a window of `size` ranks.
void check_read(int rank, int64_t begin, const at::Tensor& to, int size, int64_t numel,
                at::ScalarType dtype);

}  // namespace tessera
