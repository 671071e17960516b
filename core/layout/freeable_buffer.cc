#include "tessera/core/layout/freeable_buffer.h"

#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

namespace tessera {
namespace {

// See Note [Throwing storage]. The instantiation below hands the member's address to a function
// that is found by argument-dependent lookup of its tag.
struct ThrowFlag {
  using Type = bool c10::StorageImpl::*;
  friend Type address_of(ThrowFlag);
};

template <typename Tag, typename Tag::Type Address>
struct Reach {
  friend typename Tag::Type address_of(Tag) { return Address; }
};

template struct Reach<ThrowFlag, &c10::StorageImpl::throw_on_immutable_data_ptr_>;

bool& throw_flag(c10::StorageImpl& storage) { return storage.*address_of(ThrowFlag{}); }

/// Points at `memory`'s data and keeps it alive. Allocates nothing.
c10::DataPtr pointer_to(const at::Tensor& memory) {
  c10::TensorImpl* kept = memory.unsafeGetTensorImpl();
  c10::raw::intrusive_ptr::incref(kept);
  return {memory.mutable_data_ptr(), kept,
          [](void* impl) { c10::raw::intrusive_ptr::decref(static_cast<c10::TensorImpl*>(impl)); },
          memory.device()};
}

c10::DataPtr null_pointer(at::Device place) { return {nullptr, place}; }

}  // namespace

FreeableBuffer::FreeableBuffer(int64_t numel, at::ScalarType dtype, at::Device place,
                               std::string access_error)
    : access_error_(std::move(access_error)) {
  const auto nbytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, null_pointer(place),
                       /*allocator=*/nullptr, /*resizable=*/false);
  // Built by hand: factories and set_() look at the data.
  const auto key = place.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  tensor_ = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                     c10::scalarTypeToTypeMeta(dtype));
  tensor_.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  forbid_with(access_error_);
}

FreeableBuffer::~FreeableBuffer() = default;

void FreeableBuffer::attach(at::Tensor memory) {
  TORCH_INTERNAL_ASSERT(!has_memory() && memory.dim() == 1 && memory.is_contiguous() &&
                        memory.numel() == tensor_.numel() &&
                        memory.scalar_type() == tensor_.scalar_type() &&
                        memory.device() == tensor_.device());
  memory_ = std::move(memory);
  // Setting the pointer is also what makes the storage look at the flag again.
  throw_flag(*storage()) = is_forbidden_ || is_sealed();
  storage()->set_data_ptr_noswap(pointer_to(memory_));
}

at::Tensor FreeableBuffer::detach() {
  if (is_forbidden_) forbid_with(is_sealed() ? seal_error_ : access_error_);
  is_forbidden_ = false;
  throw_flag(*storage()) = true;
  storage()->set_data_ptr_noswap(null_pointer(tensor_.device()));
  return std::exchange(memory_, at::Tensor());
}

void FreeableBuffer::forbid(const std::string& error) {
  is_forbidden_ = true;
  forbid_with(error);
}

void FreeableBuffer::permit() {
  if (!is_forbidden_) return;
  is_forbidden_ = false;
  be_idle();
}

void FreeableBuffer::seal(std::string error) {
  seal_error_ = std::move(error);
  if (!is_forbidden_) be_idle();
}

void FreeableBuffer::unseal() {
  if (!is_sealed()) return;
  seal_error_.clear();
  if (!is_forbidden_) be_idle();
}

void FreeableBuffer::set_access_error(std::string error) {
  access_error_ = std::move(error);
  if (!is_forbidden_ && !is_sealed()) be_idle();
}

/// What it is while nobody forbids it: sealed, or without memory, or readable.
void FreeableBuffer::be_idle() {
  forbid_with(is_sealed() ? seal_error_ : access_error_);
  if (!has_memory() || is_sealed()) return;
  throw_flag(*storage()) = false;
  storage()->set_data_ptr_noswap(pointer_to(memory_));
}

void FreeableBuffer::forbid_with(const std::string& error) {
  storage()->release_data_and_set_meta_custom_data_ptr_error_msg_(error);
}

}  // namespace tessera
