#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace tessera::internal::testing {

/// Whether a view of a storage keeps its memory.
enum class Keep : uint8_t { kYes, kNo };

/// The CPU's tensor over a device tensor's memory: sizes, strides, dtype, bits.
at::Tensor host_view(const at::Tensor& tensor, Keep keep);

/// The tensors of one call of an operator, as the CPU sees them: what shares memory on the device
/// does so there, and what the CPU hands back becomes the device's.
class HostViews {
 public:
  explicit HostViews(int device, Keep keep = Keep::kYes) : device_(device), keep_(keep) {}

  /// Of a device tensor its view, of any other tensor itself. The same for the same tensor.
  at::Tensor of(const at::Tensor& tensor);
  /// Whether `result` is one of the views so far, or shares memory with one.
  bool knows(const at::Tensor& result) const;
  /// The device's tensor for one that the CPU returned: an argument, a view of one, or a new one.
  at::Tensor back(const at::Tensor& result);
  /// Gives an argument that was written the sizes, strides and memory that the CPU left in its
  /// view.
  void update(const at::Tensor& argument);

 private:
  c10::Storage view_of(const c10::Storage& storage);

  const int device_;
  const Keep keep_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;       // argument, view
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // device's, CPU's
};

}  // namespace tessera::internal::testing
