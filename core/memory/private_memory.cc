#include "tessera/core/memory/private_memory.h"

#include <algorithm>
#include <cstdlib>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

namespace tessera {

at::Tensor allocate_private(int64_t numel, at::ScalarType dtype) {
  constexpr size_t kPageBytes = 4096;
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  const size_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* memory = std::aligned_alloc(kPageBytes, std::max(rounded, kPageBytes));
  TORCH_CHECK(memory != nullptr, "[memory] got no space for ", bytes,
              " bytes, expected a buffer of that size; free memory or use less");
  return at::from_blob(
      memory, {numel}, [](void* block) { std::free(block); }, at::TensorOptions().dtype(dtype));
}

}  // namespace tessera
