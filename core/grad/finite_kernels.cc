#include "tessera/core/grad/finite_kernels.h"

#include <bit>

#include <c10/util/Exception.h>

namespace tessera {
namespace {

/// An IEEE number is not finite when all bits of its exponent are set. Integer compares vectorise
/// where isfinite() would not.
template <typename Bits>
int64_t count(const void* elements, Range range, Bits exponent_mask) {
  const Bits* bits = static_cast<const Bits*>(elements) + range.begin;
  int64_t non_finite = 0;
  for (int64_t i = 0; i < range.numel; ++i) {
    non_finite += static_cast<int64_t>((bits[i] & exponent_mask) == exponent_mask);
  }
  return non_finite;
}

}  // namespace

int64_t count_non_finite(const at::Tensor& buffer, Range range) {
  const void* elements = buffer.const_data_ptr();
  switch (buffer.scalar_type()) {
    case at::kFloat:
      return count<uint32_t>(elements, range, 0x7F800000U);
    case at::kDouble:
      return count<uint64_t>(elements, range, 0x7FF0000000000000ULL);
    case at::kBFloat16:
      return count<uint16_t>(elements, range, uint16_t{0x7F80});
    case at::kHalf:
      return count<uint16_t>(elements, range, uint16_t{0x7C00});
    default:
      TORCH_CHECK(false, "[grad] count_non_finite: got ", buffer.scalar_type(),
                  ", expected a floating dtype");
  }
}

}  // namespace tessera
