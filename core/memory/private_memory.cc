#include "tessera/core/memory/private_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "tessera/core/memory/huge_pages.h"
#include "tessera/core/numbers/round_up.h"

namespace tessera::internal {
namespace {

/// Maps `bytes` in huge pages; null if there is no space.
char* map_huge(int64_t bytes) {
  char* const memory = map_on_huge_page(bytes, /*fd=*/-1, Writes::kPrivate);
  if (memory != nullptr) use_huge_pages(memory, bytes);
  return memory;
}

}  // namespace

at::Tensor allocate_private(int64_t numel, at::ScalarType dtype) {
  static const int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  const int64_t wanted_bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t bytes = std::max(round_up(wanted_bytes, page_bytes), page_bytes);
  const bool is_large = bytes >= kLargeBytes;
  void* memory = is_large ? map_huge(bytes) : std::aligned_alloc(page_bytes, bytes);
  TORCH_CHECK(memory != nullptr, "[memory] got no space for ", wanted_bytes,
              " bytes, expected a buffer of that size; free memory or use less");
  const auto release = [is_large, bytes](void* block) {
    if (is_large) {
      ::munmap(block, bytes);
    } else {
      std::free(block);
    }
  };
  return at::from_blob(memory, {numel}, release, at::TensorOptions().dtype(dtype));
}

}  // namespace tessera::internal
