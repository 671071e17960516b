#include "tessera/core/comm/groups/host_memory.h"

#include <cstdlib>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "tessera/process_group.h"

namespace tessera::internal {

at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) {
  constexpr int64_t kPageBytes = 4096;
  const int64_t bytes = check_allocate(numel, dtype);
  const int64_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* data = std::aligned_alloc(kPageBytes, rounded > 0 ? rounded : kPageBytes);
  TORCH_CHECK(data != nullptr, "[comm] allocate: got no memory for ", bytes, " bytes, expected ",
              numel, " elements of ", c10::toString(dtype), "; use smaller buffers or free memory");
  return at::from_blob(
      data, {numel}, [](void* memory) { std::free(memory); }, at::TensorOptions().dtype(dtype));
}

}  // namespace tessera::internal
