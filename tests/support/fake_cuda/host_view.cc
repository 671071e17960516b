#include "tessera/tests/support/fake_cuda/host_view.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include "tessera/tests/support/fake_cuda/memory.h"

namespace tessera::testing {
namespace {

/// A tensor over `storage` that is otherwise as `like`.
at::Tensor tensor_over(const c10::Storage& storage, const at::Tensor& like, c10::DispatchKey key) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                    like.storage_offset());
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  if (like._is_zerotensor()) made._set_zero(true);
  return made;
}

c10::Storage storage_over(const c10::Storage& storage, Keep keep) {
  void* const data = const_cast<void*>(storage.data());
  const c10::Device cpu(c10::DeviceType::CPU);
  c10::DataPtr view(data, cpu);
  if (keep == Keep::kYes) {
    auto* const owner = storage.unsafeGetStorageImpl();
    c10::raw::intrusive_ptr::incref(owner);
    view = c10::DataPtr(
        data, owner,
        [](void* held) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(held)); },
        cpu);
  }
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(view),
                      c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true);
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor, Keep keep) {
  return tensor_over(storage_over(tensor.storage(), keep), tensor, c10::DispatchKey::CPU);
}

c10::Storage HostViews::view_of(const c10::Storage& storage) {
  for (const auto& [device, cpu] : storages_) {
    if (device.is_alias_of(storage)) return cpu;
  }
  storages_.emplace_back(storage, storage_over(storage, keep_));
  return storages_.back().second;
}

at::Tensor HostViews::of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  for (const auto& [argument, view] : tensors_) {
    if (argument.is_same(tensor)) return view;
  }
  at::Tensor view = tensor_over(view_of(tensor.storage()), tensor, c10::DispatchKey::CPU);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    view.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  tensors_.emplace_back(tensor, view);
  return view;
}

bool HostViews::knows(const at::Tensor& result) const {
  if (!result.defined() || result.layout() != at::kStrided) return false;
  for (const auto& [device, cpu] : storages_) {
    if (cpu.is_alias_of(result.storage())) return true;
  }
  return false;
}

at::Tensor HostViews::back(const at::Tensor& result) {
  if (!result.defined() || result.is_cuda() || result.layout() != at::kStrided) return result;
  for (const auto& [argument, view] : tensors_) {
    if (view.is_same(result)) return argument;
  }
  for (const auto& [device, cpu] : storages_) {
    if (cpu.is_alias_of(result.storage())) {
      return tensor_over(device, result, c10::DispatchKey::CUDA);
    }
  }
  const c10::Storage made(c10::Storage::use_byte_size_t(), result.storage().nbytes(),
                          Memory::get().adopt(result.storage(), device_), &Memory::get(),
                          /*resizable=*/true);
  storages_.emplace_back(made, result.storage());
  return tensor_over(made, result, c10::DispatchKey::CUDA);
}

void HostViews::update(const at::Tensor& argument) {
  if (!argument.defined() || !argument.is_cuda()) return;
  const at::Tensor view = of(argument);
  const c10::Storage& memory = argument.storage();
  const c10::Storage& written = view.storage();
  if (written.data() != memory.data()) {
    const size_t bytes = written.nbytes();
    c10::DataPtr data = written.set_data_ptr(c10::DataPtr(nullptr, at::kCPU));
    const c10::Storage owner(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr,
                             /*resizable=*/false);
    memory.set_data_ptr_noswap(Memory::get().adopt(owner, device_));
    memory.set_nbytes(bytes);
  }
  if (view.sizes() != argument.sizes() || view.strides() != argument.strides() ||
      view.storage_offset() != argument.storage_offset()) {
    argument.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(),
                                                          view.storage_offset());
  }
}

}  // namespace tessera::testing
