#include "tessera/tests/support/fake_cuda/kernels.h"

#include <optional>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include "tessera/tests/support/fake_cuda/host_view.h"
#include "tessera/tests/support/fake_cuda/memory.h"
#include "tessera/tests/support/fake_cuda/operator_call.h"

namespace tessera::internal::testing {
namespace {

/// If a device is named, makes it current for a scope.
class OnDevice {
 public:
  explicit OnDevice(std::optional<c10::Device> device) : old_(Machine::current()) {
    if (device && device->has_index()) Machine::get().make_current(device->index());
  }
  ~OnDevice() { Machine::restore_current(old_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const int old_;
};

constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                 std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  const OnDevice here(device);
  return at::detail::empty_generic_symint(size, &DeviceMemory::get(), kCuda,
                                          dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> device, std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  const OnDevice here(device);
  return at::detail::empty_strided_symint_generic(size, stride, &DeviceMemory::get(), kCuda,
                                                  dtype.value_or(at::kFloat));
}

/// Copies elements with the CPU's kernel.
void copy_elements(const at::Tensor& to, const at::Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  to.copy_(from);
}

/// Copies between devices run on the current stream. Copies between a device and the host do so if
/// the host's memory is pinned and the caller asks for it; otherwise the host waits.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (to.is_same(from)) return to;
  at::assert_no_internal_overlap(to);
  const bool is_on_devices = to.is_cuda() && from.is_cuda();
  const int device = (to.is_cuda() ? to : from).device().index();
  Machine& machine = Machine::get();
  ++machine.counts(device).operators;
  DeviceStream& stream = machine.current_queue(device);

  // Stream order keeps the device's memory alive; the host's must be kept until it was used.
  const auto view = [](const at::Tensor& tensor, Keep keep) {
    return tensor.is_cuda() ? host_view(tensor, keep) : tensor;
  };
  const bool is_queued =
      is_on_devices ? to.device() == from.device()
                    : non_blocking &&
                          PinnedMemory::get().contains((to.is_cuda() ? from : to).storage().data());
  if (is_queued) {
    const at::AutoDispatchBelowADInplaceOrView no_gradients;
    // Expand here, so that wrong sizes throw in the call and not on the stream.
    at::Tensor source = view(from, Keep::kNo).expand(to.sizes());
    if (to.numel() == 0) return to;
    stream.run([to = view(to, Keep::kNo), from = std::move(source)] { copy_elements(to, from); });
    return to;
  }
  stream.drain();
  if (is_on_devices) {
    machine.current_queue(from.device().index()).drain();
  } else {
    count_host_sync(device);
  }
  copy_elements(view(to, Keep::kYes), view(from, Keep::kYes));
  return to;
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  const int device = tensor.device().index();
  begin_operator(device);
  count_host_sync(device);
  return at::native::_local_scalar_dense_cpu(host_view(tensor, Keep::kYes));
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const int64_t numel =
      static_cast<int64_t>(source.nbytes() / static_cast<size_t>(self.element_size()));
  return at::native::set_storage_cpu_(self, std::move(source), 0, {numel}, {});
}

at::Tensor& set_storage_with_sizes(at::Tensor& self, at::Storage source, int64_t offset,
                                   at::IntArrayRef size, at::IntArrayRef stride) {
  const OnDevice here(self.device());
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

at::Tensor& set_nothing(at::Tensor& self) {
  const OnDevice here(self.device());
  at::Storage none(at::Storage::use_byte_size_t(), 0, DeviceMemory::get().allocate(0),
                   &DeviceMemory::get(),
                   /*resizable=*/true);
  return at::native::set_storage_cpu_(self, std::move(none), 0, {0}, {});
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  DeviceMemory::get().recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

void add_memory_kernels(torch::Library& kernels) {
  // Operators that make views must not look at the data, which may be freed.
  kernels.impl("as_strided", at::native::as_strided_tensorimpl);
  kernels.impl("view",
               static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(at::native::view));
  kernels.impl("_reshape_alias", at::native::_reshape_alias);
  kernels.impl("unfold", at::native::unfold);
  kernels.impl("empty.memory_format", empty);
  kernels.impl("empty_strided", empty_strided);
  kernels.impl("copy_", copy);
  kernels.impl("_local_scalar_dense", local_scalar);
  kernels.impl("set_.source_Storage", set_storage);
  kernels.impl("set_.source_Storage_storage_offset", set_storage_with_sizes);
  kernels.impl("set_.source_Tensor", at::native::set_tensor_);
  kernels.impl("set_", set_nothing);
  kernels.impl("record_stream", record_stream);
}

}  // namespace tessera::internal::testing
