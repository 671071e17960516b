#include "tessera/core/step/norm_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tessera/core/numbers/power.h"
#include "tessera/core/step/grad_norm.h"

namespace tessera::internal {
namespace {

/// Returns the larger of `a` and `b`; NaN if either is NaN.
double larger(double a, double b) { return b > a || std::isnan(b) ? b : a; }

}  // namespace

void NormSum::add(const at::Tensor& buffer, const Segment& segment, double limit) {
  if (std::isinf(p_)) {
    largest_ = larger(largest_, largest_magnitude(buffer, segment, limit));
  } else {
    add_powers(buffer, segment, p_, limit, sum_);
  }
}

void NormSum::merge(const NormSum& other) {
  sum_.merge(other.sum_);
  largest_ = larger(largest_, other.largest_);
}

void NormSum::store(std::span<int64_t, kWords> words) const {
  if (std::isinf(p_)) {
    std::fill(words.begin(), words.end(), 0);
    words[0] = std::bit_cast<int64_t>(largest_);
  } else {
    sum_.store(words);
  }
}

NormSum NormSum::load(double p, std::span<const int64_t, kWords> words) {
  NormSum loaded(p);
  if (std::isinf(p)) {
    loaded.largest_ = std::bit_cast<double>(words[0]);
  } else {
    loaded.sum_ = ExactSum::load(words);
  }
  return loaded;
}

double NormSum::norm() const {
  if (std::isinf(p_)) return largest_;
  if (p_ == 2.0) return std::sqrt(sum_.value());
  if (p_ == 1.0) return sum_.value();
  return power(sum_.value(), 1.0 / p_);
}

}  // namespace tessera::internal
