#include "tessera/mean.h"

#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/core/step/host_all_gather.h"
#include "tessera/process_group.h"

namespace tessera {
using namespace internal;

struct Mean::Sums {
  ExactSum values;  // sum of values times their weights
  ExactSum weights;
};

Mean::Mean() : sums_(std::make_unique<Sums>()) {}
Mean::~Mean() = default;
Mean::Mean(const Mean& other) : sums_(std::make_unique<Sums>(*other.sums_)) {}
Mean::Mean(Mean&& other) noexcept : sums_(std::exchange(other.sums_, std::make_unique<Sums>())) {}
Mean& Mean::operator=(const Mean& other) {
  *sums_ = *other.sums_;
  return *this;
}
Mean& Mean::operator=(Mean&& other) noexcept {
  std::swap(sums_, other.sums_);
  return *this;
}

void Mean::add(double value, double weight) {
  TORCH_CHECK(
      std::isfinite(weight) && weight >= 0.0, "[mean] add: got weight ", weight,
      ", expected a finite number, 0 or more; pass how many samples the value is a mean of");
  if (weight == 0.0) return;
  sums_->values.add(value * weight);
  sums_->weights.add(weight);
}

void Mean::add(const at::Tensor& value, double weight) {
  TORCH_CHECK(value.defined() && value.numel() == 1, "[mean] add: got ",
              value.defined() ? value.numel() : 0,
              " elements, expected one; take the mean or the sum of the tensor first");
  add(value.item<double>(), weight);
}

double Mean::weight() const { return sums_->weights.value(); }

double Mean::value() const {
  const double all = weight();
  return all == 0.0 ? std::numeric_limits<double>::quiet_NaN() : sums_->values.value() / all;
}

Mean Mean::over_ranks(ProcessGroup& group) const {
  constexpr size_t kWords = ExactSum::kWords;
  HostAllGather all(group, /*words=*/2 * kWords);
  sums_->values.store(all.mine().first<kWords>());
  sums_->weights.store(all.mine().subspan<kWords, kWords>());
  all.exchange("mean over ranks");
  Mean whole;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::span<const int64_t> words = all.of(rank);
    whole.sums_->values.merge(ExactSum::load(words.first<kWords>()));
    whole.sums_->weights.merge(ExactSum::load(words.subspan<kWords, kWords>()));
  }
  return whole;
}

}  // namespace tessera
