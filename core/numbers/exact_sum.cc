#include "tessera/core/numbers/exact_sum.h"

#include <algorithm>

#include "tessera/core/numbers/exact_digits.h"

namespace tessera::internal {

namespace {

constexpr int64_t kMaxUnnormalized = int64_t{1} << 30;

}  // namespace

static_assert(ExactSum::kWords == kExactWords);

void ExactSum::add(double term) {
  if (!exact_is_finite(term)) {
    ++words_[exact_count_word(term)];
    return;
  }
  const ExactTerm digits = exact_term(term);
  words_[digits.word] += digits.low;
  words_[digits.word + 1] += digits.middle;
  words_[digits.word + 2] += digits.high;
  if (++unnormalized_ >= kMaxUnnormalized) normalize();
}

void ExactSum::merge(const ExactSum& other) {
  for (size_t i = 0; i < kWords; ++i) words_[i] += other.words_[i];
  unnormalized_ += other.unnormalized_ + 1;
  if (unnormalized_ >= kMaxUnnormalized) normalize();
}

void ExactSum::normalize() {
  exact_normalize(words_.data());
  unnormalized_ = 0;
}

void ExactSum::store(std::span<int64_t, kWords> words) const {
  ExactSum canonical = *this;
  canonical.normalize();
  std::copy(canonical.words_.begin(), canonical.words_.end(), words.begin());
}

ExactSum ExactSum::load(std::span<const int64_t, kWords> words) {
  ExactSum sum;
  std::copy(words.begin(), words.end(), sum.words_.begin());
  sum.normalize();
  return sum;
}

double ExactSum::value() const {
  ExactSum sum = *this;
  return exact_value(sum.words_.data());
}

}  // namespace tessera::internal
