#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace tessera::internal::testing {

/// Whether a view of a storage keeps the memory alive.
enum class Keep : uint8_t { kYes, kNo };

/// A CPU tensor over a device tensor's memory: the same sizes, strides, dtype, bits.
at::Tensor host_view(const at::Tensor& tensor, Keep keep);

/// The CPU's views of the tensors of one operator call: tensors that share memory on the device do
/// so in the views, and the CPU's results become device tensors.
class HostViews {
 public:
  explicit HostViews(int device, Keep keep = Keep::kYes) : device_(device), keep_(keep) {}

  /// Returns a device tensor's view, or any other tensor itself. The same view for the same tensor.
  at::Tensor of(const at::Tensor& tensor);
  /// Whether `result` is one of the views made so far, or shares memory with one.
  bool knows(const at::Tensor& result) const;
  /// Returns the device tensor for a result of the CPU: an argument, a view of one, or a new one.
  at::Tensor back(const at::Tensor& result);
  /// Gives a written argument the sizes, strides and memory of its view.
  void update(const at::Tensor& argument);

 private:
  c10::Storage view_of(const c10::Storage& storage);

  const int device_;
  const Keep keep_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;       // argument, view
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // device's, CPU's
};

}  // namespace tessera::internal::testing
