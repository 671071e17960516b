#include "tessera/core/step/grad_norm.h"

#include <algorithm>
#include <array>

#include <c10/util/Exception.h>

#include "tessera/core/step/grad_norm_kernels.h"

namespace tessera::internal {

namespace {

template <typename T>
void add_squares_of(const T* x, int64_t numel, ExactSum& sum) {
  constexpr int64_t kBlocks = 32;
  std::array<double, kBlocks> sums;
  while (numel > 0) {
    const int64_t part = std::min(numel, kBlocks * kSquareBlockNumel);
    square_blocks(x, part, sums.data());
    const int64_t blocks = (part + kSquareBlockNumel - 1) / kSquareBlockNumel;
    for (int64_t b = 0; b < blocks; ++b) sum.add(sums[static_cast<size_t>(b)]);
    x += part;
    numel -= part;
  }
}

}  // namespace

void add_squares(const at::Tensor& buffer, const Segment& segment, ExactSum& sum) {
  TORCH_CHECK(buffer.device().is_cpu() && buffer.dim() == 1 && buffer.is_contiguous(),
              "[grad_norm] buffer: got ", buffer.dim(), " dimensions on ", buffer.device(),
              ", expected a contiguous 1-d tensor on cpu");
  TORCH_CHECK(segment.buffer_offset >= 0 && segment.numel >= 0 &&
                  segment.buffer_offset + segment.numel <= buffer.numel(),
              "[grad_norm] segment: got elements ", segment.buffer_offset, " to ",
              segment.buffer_offset + segment.numel, ", expected a part of 0 to ", buffer.numel());
  TORCH_CHECK(segment.parameter_offset % kSquareBlockNumel == 0,
              "[grad_norm] segment: got parameter offset ", segment.parameter_offset,
              ", expected a multiple of ", kSquareBlockNumel);
  const auto add = [&](const auto* data) {
    add_squares_of(data + segment.buffer_offset, segment.numel, sum);
  };
  switch (buffer.scalar_type()) {
    case c10::kFloat:
      return add(buffer.const_data_ptr<float>());
    case c10::kDouble:
      return add(buffer.const_data_ptr<double>());
    case c10::kBFloat16:
      return add(buffer.const_data_ptr<c10::BFloat16>());
    case c10::kHalf:
      return add(buffer.const_data_ptr<c10::Half>());
    default:
      TORCH_CHECK(false, "[grad_norm] dtype: got ", buffer.scalar_type(),
                  ", expected Float, Double, BFloat16 or Half");
  }
}

}  // namespace tessera::internal
