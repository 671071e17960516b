#include "tessera/core/memory/private_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "tessera/core/memory/huge_pages.h"

namespace tessera {
namespace {

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Null if there is no space.
char* map_huge(size_t bytes) {
  char* const memory = map_on_huge_page(static_cast<int64_t>(bytes), /*fd=*/-1, Writes::kPrivate);
  if (memory != nullptr) use_huge_pages(memory, static_cast<int64_t>(bytes));
  return memory;
}

}  // namespace

at::Tensor allocate_private(int64_t numel, at::ScalarType dtype) {
  static const auto page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t wanted_bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  const size_t bytes = std::max(round_up(wanted_bytes, page_bytes), page_bytes);
  const bool is_large = bytes >= static_cast<size_t>(kLargeBytes);
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

}  // namespace tessera
