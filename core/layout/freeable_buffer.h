#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace tessera {

/// A flat tensor whose memory can be taken away and given back while views of it live: sizes,
/// strides and storage stay, only the data pointer changes. Without memory, while forbidden and
/// while sealed, every access to the data by whatever means throws c10::Error with a text of ours.
/// Not thread-safe.
///
/// Note [Throwing storage]
/// StorageImpl can throw a custom message on every access to its data pointer; LibTorch offers to
/// set that state and not to leave it. The message is set once; the flag is a private member,
/// reached by explicit instantiation of a template with its address (standard C++: access is not
/// checked there) and toggled.
class FreeableBuffer {
 public:
  /// Empty, [numel] of `dtype` at `place`; `access_error` is what an access without memory throws.
  FreeableBuffer(int64_t numel, at::ScalarType dtype, at::Device place, std::string access_error);
  ~FreeableBuffer();
  FreeableBuffer(FreeableBuffer&& other) noexcept = default;
  FreeableBuffer(const FreeableBuffer&) = delete;
  FreeableBuffer& operator=(const FreeableBuffer&) = delete;

  /// [numel], the tensor that parameters are views of. Always defined.
  const at::Tensor& tensor() const { return tensor_; }
  c10::StorageImpl* storage() const { return tensor_.storage().unsafeGetStorageImpl(); }

  /// Whether it has memory. attach() takes `memory` (1-d, contiguous, equal numel and dtype) and
  /// keeps it alive, detach() gives it back.
  bool has_memory() const { return memory_.defined(); }
  void attach(at::Tensor memory);
  at::Tensor detach();
  /// The memory itself, readable whether forbidden or not; undefined without.
  const at::Tensor& memory() const { return memory_; }

  /// Until permit(), accesses throw `error` even though there is memory. Calls do not nest.
  void forbid(const std::string& error);
  void permit();
  bool is_forbidden() const { return is_forbidden_; }

  /// Until unseal(), accesses throw `error`, whatever attach() and permit() do.
  void seal(std::string error);
  void unseal();
  bool is_sealed() const { return !seal_error_.empty(); }

  /// From now on an access without memory throws `error`.
  void set_access_error(std::string error);
  const std::string& access_error() const { return access_error_; }

 private:
  void forbid_with(const std::string& error);
  void be_idle();

  at::Tensor tensor_;
  at::Tensor memory_;
  std::string access_error_;
  std::string seal_error_;  // "": not sealed
  bool is_forbidden_ = false;
};

}  // namespace tessera
