#include "tessera/core/memory/private_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

namespace tessera {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;  // of x86-64 and arm64

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/// A mapping of its own that begins on a huge page, zeroed. Whole huge pages of it are asked for as
/// such; the rest stays in small ones, so that no memory is spent on rounding. Null if there is no
/// space.
char* map_huge(size_t bytes) {
  const size_t reserved_bytes = bytes + kHugePageBytes;
  void* reserved =
      ::mmap(nullptr, reserved_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* begin = static_cast<char*>(reserved);
  auto* memory = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(begin), kHugePageBytes));
  if (memory > begin) ::munmap(begin, static_cast<size_t>(memory - begin));
  char* end = begin + reserved_bytes;
  if (end > memory + bytes) ::munmap(memory + bytes, static_cast<size_t>(end - memory) - bytes);
  // A refusal costs speed only.
  ::madvise(memory, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
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
