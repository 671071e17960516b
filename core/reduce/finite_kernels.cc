#include "tessera/core/reduce/finite_kernels.h"

#include <algorithm>
#include <cstring>

#include <c10/util/Exception.h>

#include "tessera/core/numbers/vector_targets.h"

namespace tessera::internal {
namespace {

/// Returns how many of `bits` have all bits of `exponent_mask` set, as NaN and infinities have.
/// Integer comparisons vectorise where isfinite() would not. They vectorise best if the counter is
/// as wide as the elements. A 16-bit counter could overflow on a long range, so the range is
/// counted in blocks.
template <typename Bits>
inline int64_t count_blocks(const Bits* bits, int64_t numel, Bits exponent_mask) {
  constexpr int64_t kBlockNumel = 4096;
  int64_t non_finite = 0;
  for (int64_t begin = 0; begin < numel; begin += kBlockNumel) {
    const int64_t end = std::min(begin + kBlockNumel, numel);
    Bits in_block = 0;
    for (int64_t i = begin; i < end; ++i) {
      in_block = static_cast<Bits>(in_block + ((bits[i] & exponent_mask) == exponent_mask ? 1 : 0));
    }
    non_finite += static_cast<int64_t>(in_block);
  }
  return non_finite;
}

TESSERA_VECTOR_TARGETS int64_t count(const uint16_t* bits, int64_t numel, uint16_t exponent_mask) {
  return count_blocks(bits, numel, exponent_mask);
}

TESSERA_VECTOR_TARGETS int64_t count(const uint32_t* bits, int64_t numel, uint32_t exponent_mask) {
  return count_blocks(bits, numel, exponent_mask);
}

TESSERA_VECTOR_TARGETS int64_t count(const uint64_t* bits, int64_t numel, uint64_t exponent_mask) {
  return count_blocks(bits, numel, exponent_mask);
}

template <typename Bits>
int64_t count_in(const char* data, int64_t numel, Bits exponent_mask) {
  return count(reinterpret_cast<const Bits*>(data), numel, exponent_mask);
}

int64_t count_in(at::ScalarType dtype, const char* data, int64_t numel) {
  switch (dtype) {
    case at::kFloat:
      return count_in<uint32_t>(data, numel, 0x7F800000U);
    case at::kDouble:
      return count_in<uint64_t>(data, numel, 0x7FF0000000000000ULL);
    case at::kBFloat16:
      return count_in<uint16_t>(data, numel, 0x7F80U);
    case at::kHalf:
      return count_in<uint16_t>(data, numel, 0x7C00U);
    default:
      TORCH_CHECK(false, "[grad] count_non_finite: got ", dtype, ", expected a floating dtype");
  }
}

}  // namespace

int64_t count_non_finite(const at::Tensor& buffer, Range range) {
  const auto element = static_cast<int64_t>(buffer.element_size());
  const auto* data = static_cast<const char*>(buffer.const_data_ptr());
  return count_in(buffer.scalar_type(), data + range.begin * element, range.numel);
}

int64_t copy_counting_non_finite(const at::Tensor& buffer, Range range, const void* from) {
  // A block stays in L1 from the copy to the count.
  constexpr int64_t kBlockBytes = int64_t{16} << 10;
  const at::ScalarType dtype = buffer.scalar_type();
  const auto element = static_cast<int64_t>(buffer.element_size());
  auto* target = static_cast<char*>(buffer.mutable_data_ptr()) + range.begin * element;
  const auto* source = static_cast<const char*>(from);
  const int64_t bytes = range.numel * element;
  int64_t non_finite = 0;
  for (int64_t begin = 0; begin < bytes; begin += kBlockBytes) {
    const int64_t count = std::min(kBlockBytes, bytes - begin);
    std::memcpy(target + begin, source + begin, static_cast<size_t>(count));
    non_finite += count_in(dtype, source + begin, count / element);
  }
  return non_finite;
}

}  // namespace tessera::internal
