#include "tessera/tests/support/fake_cuda/host_view.h"

#include <optional>
#include <string>

#include <ATen/SparseTensorImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include "tessera/tests/support/fake_cuda/memory.h"

namespace tessera::internal::testing {
namespace {

/// Makes a tensor over `storage` that otherwise equals `like`.
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

/// The address of the memory, even if it may not be read now.
void* address_of(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

/// The error for reading the storage's memory while it is freed; nullopt if it may be read.
std::optional<std::string> refusal_of(const c10::Storage& storage) {
  try {
    storage.data();
    return std::nullopt;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

c10::Storage storage_over(const c10::Storage& storage, Keep keep) {
  void* const data = address_of(storage);
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
  c10::Storage made(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(view),
                    c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true);
  if (const auto refusal = refusal_of(storage)) {
    made.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(*refusal);
  }
  return made;
}

at::SparseTensorImpl& sparse(const at::Tensor& tensor) {
  return *static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

/// Makes `to` a sparse tensor like `from`, with the given indices and values.
void set_sparse(const at::Tensor& to, const at::Tensor& from, const at::Tensor& indices,
                const at::Tensor& values) {
  const at::SparseTensorImpl& like = sparse(from);
  sparse(to).raw_resize_(like.sparse_dim(), like.dense_dim(), from.sizes());
  sparse(to).set_indices_and_values_unsafe(indices, values);
  sparse(to).set_coalesced(like.coalesced());
}

at::Tensor sparse_over(const at::Tensor& like, const at::Tensor& indices, const at::Tensor& values,
                       c10::DispatchKey key) {
  at::Tensor made =
      at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), like.dtype());
  set_sparse(made, like, indices, values);
  return made;
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
  if (tensor.is_sparse()) {
    const at::Tensor view = sparse_over(tensor, of(sparse(tensor).indices()),
                                        of(sparse(tensor).values()), c10::DispatchKey::SparseCPU);
    tensors_.emplace_back(tensor, view);
    return view;
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
  if (!result.defined() || result.is_cuda()) return result;
  for (const auto& [argument, view] : tensors_) {
    if (view.is_same(result)) return argument;
  }
  if (result.is_sparse()) {
    return sparse_over(result, back(sparse(result).indices()), back(sparse(result).values()),
                       c10::DispatchKey::SparseCUDA);
  }
  if (result.layout() != at::kStrided) return result;
  for (const auto& [device, cpu] : storages_) {
    if (cpu.is_alias_of(result.storage())) {
      return tensor_over(device, result, c10::DispatchKey::CUDA);
    }
  }
  const c10::Storage made(c10::Storage::use_byte_size_t(), result.storage().nbytes(),
                          DeviceMemory::get().adopt(result.storage(), device_),
                          &DeviceMemory::get(),
                          /*resizable=*/true);
  storages_.emplace_back(made, result.storage());
  return tensor_over(made, result, c10::DispatchKey::CUDA);
}

void HostViews::update(const at::Tensor& argument) {
  if (!argument.defined() || !argument.is_cuda()) return;
  const at::Tensor view = of(argument);
  if (argument.is_sparse()) {
    set_sparse(argument, view, back(sparse(view).indices()), back(sparse(view).values()));
    return;
  }
  const c10::Storage& memory = argument.storage();
  const c10::Storage& written = view.storage();
  if (address_of(written) != nullptr && address_of(written) != address_of(memory)) {
    const size_t bytes = written.nbytes();
    c10::DataPtr data = written.set_data_ptr(c10::DataPtr(nullptr, at::kCPU));
    const c10::Storage owner(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr,
                             /*resizable=*/false);
    memory.set_data_ptr_noswap(DeviceMemory::get().adopt(owner, device_));
    memory.set_nbytes(bytes);
  }
  if (view.sizes() != argument.sizes() || view.strides() != argument.strides() ||
      view.storage_offset() != argument.storage_offset()) {
    argument.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(),
                                                          view.storage_offset());
  }
}

}  // namespace tessera::internal::testing
