#include "tessera/optim/algorithms/newton_schulz.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include "tessera/core/numbers/round_up.h"

namespace tessera::internal {
namespace {

/// Each part of the scratch memory begins on a multiple of this many elements: 128 bytes in
/// bfloat16. The bits of a matrix product depend on its operands' alignment.
constexpr int64_t kAlignment = 64;

class ScratchParts {
 public:
  explicit ScratchParts(at::Tensor memory) : memory_(std::move(memory)) {}
  at::Tensor take(at::IntArrayRef sizes, at::IntArrayRef strides) {
    const at::Tensor part =
        at::as_strided(memory_, sizes, strides, memory_.storage_offset() + used_);
    used_ += round_up(part.numel(), kAlignment);
    TORCH_INTERNAL_ASSERT(used_ <= memory_.numel());
    return part;
  }

 private:
  const at::Tensor memory_;
  int64_t used_ = 0;
};

}  // namespace

int64_t NewtonSchulz::scratch_numel(int64_t rows, int64_t cols) {
  const int64_t shorter = std::min(rows, cols);
  return 2 * round_up(rows * cols, kAlignment) + 2 * round_up(shorter * shorter, kAlignment) +
         kAlignment;
}

void NewtonSchulz::apply(const at::Tensor& matrix, const at::Tensor& scratch) const {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const int64_t rows = matrix.size(0);
  const int64_t cols = matrix.size(1);
  const bool is_tall = rows > cols;
  const int64_t m = std::min(rows, cols);
  const int64_t n = std::max(rows, cols);
  const auto [a, b, c] = coefficients;

  ScratchParts parts(is_in_bfloat16 ? scratch.view(at::kBFloat16) : scratch);
  const at::Tensor first = parts.take({rows, cols}, matrix.strides());
  // `other` is a contiguous matrix in the memory of `first`. The iteration writes its results to
  // `next` and to `other` in turn.
  at::Tensor other = at::as_strided(first, {m, n}, {n, 1}, first.storage_offset());
  at::Tensor next = parts.take({m, n}, {n, 1});
  at::Tensor gram = parts.take({m, m}, {m, 1});
  at::Tensor change = parts.take({m, m}, {m, 1});
  at::Tensor norm = parts.take({}, {});

  first.copy_(matrix);
  at::Tensor x = is_tall ? first.t() : first;
  at::linalg_vector_norm_out(norm, x, /*ord=*/2);
  x.div_(norm.clamp_min_(eps));
  for (int64_t step = 0; step < steps; ++step) {
    at::mm_out(gram, x, x.t());
    at::addmm_out(change, gram, gram, gram, /*beta=*/b, /*alpha=*/c);
    at::addmm_out(next, x, change, x, /*beta=*/a);
    x = next;
    std::swap(next, other);
  }
  matrix.copy_(is_tall ? x.t() : x);
}

}  // namespace tessera::internal
