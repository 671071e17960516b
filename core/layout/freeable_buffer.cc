#include "tessera/core/layout/freeable_buffer.h"

#include <utility>

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

namespace tessera::internal {
namespace {

/// Returns a DataPtr to the address `data` inside `memory`. The DataPtr keeps `memory` alive.
/// Allocates nothing.
c10::DataPtr pointer_into(const at::Tensor& memory, char* data) {
  c10::TensorImpl* kept = memory.unsafeGetTensorImpl();
  c10::raw::intrusive_ptr::incref(kept);
  return {data, kept,
          [](void* impl) { c10::raw::intrusive_ptr::decref(static_cast<c10::TensorImpl*>(impl)); },
          memory.device()};
}

}  // namespace

FreeableBuffer::FreeableBuffer(int64_t numel, at::ScalarType dtype, at::Device device,
                               std::string access_error)
    : numel_(numel), dtype_(dtype), device_(device), access_error_(std::move(access_error)) {}

FreeableBuffer::~FreeableBuffer() = default;

void FreeableBuffer::adopt(c10::Storage storage, int64_t begin) {
  TORCH_INTERNAL_ASSERT(!has_memory() && begin >= 0 &&
                        begin + static_cast<int64_t>(storage.nbytes() / c10::elementSize(dtype_)) <=
                            numel_);
  parts_.push_back({ThrowingStorage(std::move(storage), device_,
                                    is_protected() ? protection_error_ : access_error_),
                    begin});
}

bool FreeableBuffer::is_intact(size_t part) const {
  return parts_[part].storage.data() == (has_memory() ? data_of(parts_[part]) : nullptr);
}

void FreeableBuffer::attach(at::Tensor memory) {
  TORCH_INTERNAL_ASSERT(!has_memory() && memory.dim() == 1 && memory.is_contiguous() &&
                        memory.numel() == numel_ && memory.scalar_type() == dtype_ &&
                        memory.device() == device_);
  memory_ = std::move(memory);
  using Access = ThrowingStorage::Access;
  point_to_memory(is_forbidden_ || is_protected() ? Access::kDenied : Access::kAllowed);
}

at::Tensor FreeableBuffer::detach() {
  is_forbidden_ = false;
  deny(is_protected() ? protection_error_ : access_error_);
  for (Part& part : parts_) {
    part.storage.point_to({nullptr, device_}, ThrowingStorage::Access::kDenied);
  }
  return std::exchange(memory_, at::Tensor());
}

at::Tensor FreeableBuffer::replace(at::Tensor memory) {
  at::Tensor before = std::exchange(memory_, at::Tensor());
  attach(std::move(memory));
  return before;
}

void FreeableBuffer::forbid(const std::string& error) {
  is_forbidden_ = true;
  deny(error);
}

void FreeableBuffer::permit() {
  if (!is_forbidden_) return;
  is_forbidden_ = false;
  update_access();
}

void FreeableBuffer::protect(std::string error) {
  protection_error_ = std::move(error);
  if (!is_forbidden_) update_access();
}

void FreeableBuffer::unprotect() {
  if (!is_protected()) return;
  protection_error_.clear();
  if (!is_forbidden_) update_access();
}

void FreeableBuffer::set_access_error(std::string error) {
  access_error_ = std::move(error);
  if (!has_memory() && !is_forbidden_) update_access();
}

/// Denies access if the buffer is protected or has no memory, else allows it. Not to be called
/// between forbid() and permit(). A readable storage stays readable throughout, because an operator
/// may be about to read the address.
void FreeableBuffer::update_access() {
  if (is_protected()) {
    deny(protection_error_);
  } else if (has_memory()) {
    point_to_memory(ThrowingStorage::Access::kAllowed);
  } else {
    deny(access_error_);
  }
}

void FreeableBuffer::point_to_memory(ThrowingStorage::Access access) {
  for (Part& part : parts_) {
    part.storage.point_to(pointer_into(memory_, data_of(part)), access);
  }
}

char* FreeableBuffer::data_of(const Part& part) const {
  return static_cast<char*>(memory_.mutable_data_ptr()) +
         part.begin * static_cast<int64_t>(c10::elementSize(dtype_));
}

void FreeableBuffer::deny(const std::string& error) {
  for (Part& part : parts_) part.storage.deny(error);
}

}  // namespace tessera::internal
