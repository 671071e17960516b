#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"

namespace tessera::internal::cuda {

/// Lists of items in the device's memory, uploaded once. The size of an item is a multiple of 8
/// bytes.
template <typename Item>
class DeviceLists {
 public:
  /// Queues one copy of all lists on the device's current stream. Local.
  DeviceLists(Device& device, const std::vector<std::vector<Item>>& lists) {
    for (const std::vector<Item>& list : lists) {
      begins_.push_back(begins_.back() + static_cast<int64_t>(list.size()));
    }
    const int64_t words = begins_.back() * kItemWords;
    on_host_ = device.allocate_on_host(words, at::kLong);
    on_device_ = device.allocate(words, at::kLong);
    if (words == 0) return;
    auto* to = static_cast<Item*>(on_host_.mutable_data_ptr());
    for (const std::vector<Item>& list : lists) {
      if (!list.empty()) std::memcpy(to, list.data(), list.size() * sizeof(Item));
      to += list.size();
    }
    device.current_stream()->copy(on_device_, on_host_);
  }

  /// Return the address on the device, and the length, of list number `list`.
  const Item* items(size_t list) const {
    return static_cast<const Item*>(on_device_.const_data_ptr()) + begins_[list];
  }
  int64_t count(size_t list) const { return begins_[list + 1] - begins_[list]; }

  /// Returns how many bytes of device memory the lists take.
  int64_t bytes() const { return static_cast<int64_t>(on_device_.nbytes()); }

 private:
  static constexpr int64_t kItemWords = sizeof(Item) / sizeof(int64_t);
  static_assert(sizeof(Item) == kItemWords * sizeof(int64_t));
  static_assert(std::is_trivially_copyable_v<Item>);

  std::vector<int64_t> begins_ = {0};
  at::Tensor on_host_;  // kept because the copy may not have run yet
  at::Tensor on_device_;
};

}  // namespace tessera::internal::cuda
