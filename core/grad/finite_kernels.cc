#include "tessera/core/grad/finite_kernels.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "tessera/core/step/vector_targets.h"

namespace tessera {
namespace {

/// An IEEE number is not finite when all bits of its exponent are set. Integer compares vectorise
/// where isfinite() would not, most of all when the count is as wide as the elements; blocks keep
/// a 16-bit count from overflowing.
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
int64_t count_in(const at::Tensor& buffer, Range range, Bits exponent_mask) {
  return count(static_cast<const Bits*>(buffer.const_data_ptr()) + range.begin, range.numel,
               exponent_mask);
}

}  // namespace

int64_t count_non_finite(const at::Tensor& buffer, Range range) {
  switch (buffer.scalar_type()) {
    case at::kFloat:
      return count_in<uint32_t>(buffer, range, 0x7F800000U);
    case at::kDouble:
      return count_in<uint64_t>(buffer, range, 0x7FF0000000000000ULL);
    case at::kBFloat16:
      return count_in<uint16_t>(buffer, range, 0x7F80U);
    case at::kHalf:
      return count_in<uint16_t>(buffer, range, 0x7C00U);
    default:
      TORCH_CHECK(false, "[grad] count_non_finite: got ", buffer.scalar_type(),
                  ", expected a floating dtype");
  }
}

}  // namespace tessera
