#include "tessera/ddp/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

namespace tessera::internal {

namespace {

template <typename T>
double dot(const T* a, const T* b, int64_t numel) {
  double sum = 0.0;
  for (int64_t i = 0; i < numel; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

template <typename T>
void orthonormalize_rows(T* rows, int64_t count, int64_t numel, double epsilon) {
  for (int64_t i = 0; i < count; ++i) {
    T* const row = rows + i * numel;
    const double before = std::sqrt(dot(row, row, numel));
    for (int pass = 0; pass < 2 && i > 0; ++pass) {
      for (int64_t j = 0; j < i; ++j) {
        const T* const other = rows + j * numel;
        const T share = static_cast<T>(dot(other, row, numel));
        for (int64_t n = 0; n < numel; ++n) row[n] -= share * other[n];
      }
    }
    const double norm = std::sqrt(dot(row, row, numel));
    // A row that is a linear combination of earlier rows should now be zero, but rounding may leave
    // it a norm of up to this.
    const double rounding =
        4.0 * static_cast<double>(i + 1) * std::numeric_limits<T>::epsilon() * before;
    if (norm <= rounding) {
      std::fill(row, row + numel, T(0));
    } else {
      const T divisor = static_cast<T>(norm + epsilon);
      for (int64_t n = 0; n < numel; ++n) row[n] /= divisor;
    }
  }
}

template <typename T>
struct Expansion {
  const T* left;
  const T* right;
  T* matrix;
  T* error;  // may be null
  int64_t rank, rows, columns;
  T scale;

  void run(int64_t begin, int64_t end) const {
    constexpr int64_t kBlock = 256;
    std::array<T, kBlock> block;
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t first = 0; first < columns; first += kBlock) {
        const int64_t numel = std::min(kBlock, columns - first);
        for (int64_t j = 0; j < numel; ++j) block[j] = left[i] * right[first + j];
        for (int64_t k = 1; k < rank; ++k) {
          const T factor = left[k * rows + i];
          const T* const from = right + k * columns + first;
          for (int64_t j = 0; j < numel; ++j) block[j] += factor * from[j];
        }
        T* const to = matrix + i * columns + first;
        if (error != nullptr) {
          T* const lost = error + i * columns + first;
          for (int64_t j = 0; j < numel; ++j) lost[j] = to[j] - scale * block[j];
        }
        std::copy(block.begin(), block.begin() + numel, to);
      }
    }
  }
};

}  // namespace

void orthonormalize(const at::Tensor& rows, double epsilon) {
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "orthonormalize", [&] {
    orthonormalize_rows(rows.mutable_data_ptr<scalar_t>(), rows.size(0), rows.size(1), epsilon);
  });
}

void expand(const at::Tensor& left, const at::Tensor& right, const at::Tensor& matrix,
            const at::Tensor& error, double scale) {
  AT_DISPATCH_FLOATING_TYPES(matrix.scalar_type(), "expand", [&] {
    const Expansion<scalar_t> expansion = {
        .left = left.const_data_ptr<scalar_t>(),
        .right = right.const_data_ptr<scalar_t>(),
        .matrix = matrix.mutable_data_ptr<scalar_t>(),
        .error = error.defined() ? error.mutable_data_ptr<scalar_t>() : nullptr,
        .rank = left.size(0),
        .rows = matrix.size(0),
        .columns = matrix.size(1),
        .scale = static_cast<scalar_t>(scale)};
    constexpr int64_t kGrain = 32768;
    at::parallel_for(0, expansion.rows, std::max<int64_t>(1, kGrain / matrix.size(1)),
                     [&](int64_t begin, int64_t end) { expansion.run(begin, end); });
  });
}

}  // namespace tessera::internal
