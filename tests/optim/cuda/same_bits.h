#pragma once

#include <cstring>
#include <vector>

namespace tessera::internal::cuda {

/// Whether both have the same bytes, NaNs and signs of zeros included.
template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace tessera::internal::cuda
