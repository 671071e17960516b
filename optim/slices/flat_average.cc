#include "tessera/optim/slices/flat_average.h"

#include <cstring>

#include <c10/util/Exception.h>

#include "tessera/core/memory/private_memory.h"
#include "tessera/core/numbers/vector_targets.h"
#include "tessera/optim/algorithm/element_loop.h"

namespace tessera::internal {

namespace {

template <typename T>
[[gnu::always_inline]] inline void decay_into_of(T* average, const T* values, int64_t numel,
                                                 double decay) {
  const auto kept = static_cast<T>(decay);
  const auto taken = static_cast<T>(1.0 - decay);
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        average[i] = average[i] * kept + values[i] * taken;
      });
}

template <typename T>
[[gnu::always_inline]] inline void add_to_mean_of(T* average, const T* values, int64_t numel,
                                                  int64_t count) {
  const auto divisor = static_cast<T>(count);
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        average[i] = average[i] + (values[i] - average[i]) / divisor;
      });
}

template <typename T>
[[gnu::always_inline]] inline void swap_of(T* one, T* other, int64_t numel) {
  for_each_element(
      numel, [=](int64_t i) __attribute__((always_inline)) {
        const T kept = one[i];
        one[i] = other[i];
        other[i] = kept;
      });
}

TESSERA_VECTOR_TARGETS void decay_into(float* average, const float* values, int64_t numel,
                                       double decay) {
  decay_into_of(average, values, numel, decay);
}
TESSERA_VECTOR_TARGETS void decay_into(double* average, const double* values, int64_t numel,
                                       double decay) {
  decay_into_of(average, values, numel, decay);
}
TESSERA_VECTOR_TARGETS void add_to_mean(float* average, const float* values, int64_t numel,
                                        int64_t count) {
  add_to_mean_of(average, values, numel, count);
}
TESSERA_VECTOR_TARGETS void add_to_mean(double* average, const double* values, int64_t numel,
                                        int64_t count) {
  add_to_mean_of(average, values, numel, count);
}
// Swaps the words as integers, so that all bits are kept.
TESSERA_VECTOR_TARGETS void swap_words(int32_t* one, int32_t* other, int64_t numel) {
  swap_of(one, other, numel);
}

void require_averageable(const at::Tensor& values) {
  TORCH_CHECK(values.defined() && values.device().is_cpu() && values.dim() == 1 &&
                  values.is_contiguous() &&
                  (values.scalar_type() == at::kFloat || values.scalar_type() == at::kDouble),
              "[optim] average: got no contiguous 1-d tensor of Float or Double on a CPU, expected "
              "one; hand it the masters' values");
}

void require_like(const at::Tensor& values, const at::Tensor& average) {
  require_averageable(values);
  TORCH_CHECK(values.numel() == average.numel() && values.scalar_type() == average.scalar_type(),
              "[optim] average: got ", values.numel(), " values of ", values.scalar_type(),
              ", expected ", average.numel(), " of ", average.scalar_type());
}

}  // namespace

FlatAverage::FlatAverage(const WeightAverage& setting, const std::vector<at::Tensor>& values,
                         const AllocateState& allocate)
    : setting_(setting) {
  for (const at::Tensor& shard : values) {
    require_averageable(shard);
    const at::Tensor average = allocate ? allocate(shard.numel(), shard.scalar_type())
                                        : allocate_private(shard.numel(), shard.scalar_type());
    averages_.push_back(average.zero_());
  }
}

bool FlatAverage::is_due(int64_t step) const {
  return step >= setting_.start_step && (step - setting_.start_step) % setting_.every == 0;
}

void FlatAverage::update(size_t shard, const at::Tensor& values) {
  const at::Tensor& average = averages_.at(shard);
  require_like(values, average);
  if (updates_ == 0) {
    if (average.nbytes() == 0) return;
    std::memcpy(average.mutable_data_ptr(), values.const_data_ptr(), average.nbytes());
    return;
  }
  const auto take = [&](auto* to, const auto* from) {
    if (setting_.decay.has_value()) {
      decay_into(to, from, average.numel(), *setting_.decay);
    } else {
      add_to_mean(to, from, average.numel(), updates_ + 1);
    }
  };
  if (average.scalar_type() == at::kFloat) {
    take(average.mutable_data_ptr<float>(), values.const_data_ptr<float>());
  } else {
    take(average.mutable_data_ptr<double>(), values.const_data_ptr<double>());
  }
}

void FlatAverage::swap(size_t shard, const at::Tensor& values) {
  const at::Tensor& average = averages_.at(shard);
  require_like(values, average);
  const auto words = static_cast<int64_t>(average.nbytes() / sizeof(int32_t));
  swap_words(static_cast<int32_t*>(average.mutable_data_ptr()),
             static_cast<int32_t*>(values.mutable_data_ptr()), words);
}

int64_t FlatAverage::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& average : averages_) bytes += static_cast<int64_t>(average.nbytes());
  return bytes;
}

}  // namespace tessera::internal
