#include "tessera/core/step/grad_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <c10/util/Exception.h>

#include "tessera/core/step/grad_norm_kernels.h"

namespace tessera::internal {

namespace {

/// Calls sum_blocks(x, numel, sums) for a few blocks at a time and adds up the resulting sums.
template <typename T, typename SumBlocks>
void add_blocks_of(const T* x, int64_t numel, const SumBlocks& sum_blocks, ExactSum& sum) {
  constexpr int64_t kBlocks = 32;
  std::array<double, kBlocks> sums;
  while (numel > 0) {
    const int64_t part = std::min(numel, kBlocks * kSquareBlockNumel);
    sum_blocks(x, part, sums.data());
    const int64_t blocks = (part + kSquareBlockNumel - 1) / kSquareBlockNumel;
    for (int64_t b = 0; b < blocks; ++b) sum.add(sums[static_cast<size_t>(b)]);
    x += part;
    numel -= part;
  }
}

/// Calls visit(elements) with the segment's elements, in their dtype.
template <typename Visit>
void visit_elements(const at::Tensor& buffer, const Segment& segment, const Visit& visit) {
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
  switch (buffer.scalar_type()) {
    case c10::kFloat:
      return visit(buffer.const_data_ptr<float>() + segment.buffer_offset);
    case c10::kDouble:
      return visit(buffer.const_data_ptr<double>() + segment.buffer_offset);
    case c10::kBFloat16:
      return visit(buffer.const_data_ptr<c10::BFloat16>() + segment.buffer_offset);
    case c10::kHalf:
      return visit(buffer.const_data_ptr<c10::Half>() + segment.buffer_offset);
    default:
      TORCH_CHECK(false, "[grad_norm] dtype: got ", buffer.scalar_type(),
                  ", expected Float, Double, BFloat16 or Half");
  }
}

}  // namespace

void add_squares(const at::Tensor& buffer, const Segment& segment, ExactSum& sum) {
  visit_elements(buffer, segment, [&](const auto* elements) {
    add_blocks_of(
        elements, segment.numel,
        [](const auto* x, int64_t numel, double* sums) { square_blocks(x, numel, sums); }, sum);
  });
}

void add_powers(const at::Tensor& buffer, const Segment& segment, double p, double limit,
                ExactSum& sum) {
  if (p == 2.0 && std::isinf(limit)) return add_squares(buffer, segment, sum);
  visit_elements(buffer, segment, [&](const auto* elements) {
    add_blocks_of(
        elements, segment.numel,
        [p, limit](const auto* x, int64_t numel, double* sums) {
          power_blocks(x, numel, p, limit, sums);
        },
        sum);
  });
}

double largest_magnitude(const at::Tensor& buffer, const Segment& segment, double limit) {
  double largest = 0.0;
  visit_elements(buffer, segment, [&](const auto* elements) {
    largest = largest_of(elements, segment.numel, limit);
  });
  return largest;
}

}  // namespace tessera::internal
