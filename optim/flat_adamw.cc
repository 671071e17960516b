#include "tessera/optim/flat_adamw.h"

#include <cmath>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/core/memory/private_memory.h"
#include "tessera/optim/adamw_kernels.h"
#include "tessera/optim/adamw_optimizer.h"

namespace tessera {

namespace {

class FlatAdamw final : public AdamwOptimizer<HostOptimizer> {
 public:
  FlatAdamw(const ParameterTable& table, const OptimizerPlan& plan,
            const std::vector<size_t>& group_of, std::vector<OptimizerShard> shards,
            const AllocateMoments& allocate)
      : AdamwOptimizer(table, plan, group_of, std::move(shards),
                       [&allocate](const at::Tensor& like) {
                         return allocate(like.numel(), like.scalar_type()).zero_();
                       }),
        steps_(table.size(), 0),
        coefficients_(table.size()) {}

  void update(size_t shard, const at::Tensor& gradient, std::span<const size_t> parameters,
              std::span<const uint8_t> used, double gradient_scale) override;

  std::vector<int64_t> step_counts() const override { return steps_; }
  void set_step_counts(std::span<const int64_t> counts) override {
    TORCH_INTERNAL_ASSERT(counts.size() == steps_.size());
    steps_.assign(counts.begin(), counts.end());
  }

 private:
  void check_arguments(size_t shard, const at::Tensor& gradient,
                       std::span<const uint8_t> used) const;
  AdamwCoefficients coefficients(size_t parameter, double gradient_scale) const;

  // Per entry of the table.
  std::vector<int64_t> steps_;
  std::vector<AdamwCoefficients> coefficients_;
};

void FlatAdamw::check_arguments(size_t shard, const at::Tensor& gradient,
                                std::span<const uint8_t> used) const {
  TORCH_CHECK(used.size() == steps_.size(), "[optim] used: got ", used.size(),
              " entries, expected ", steps_.size());
  TORCH_CHECK(shard < shards_.size(), "[optim] shard: got number ", shard, ", expected less than ",
              shards_.size());
  const at::Tensor& values = shards_[shard].values;
  TORCH_CHECK(
      gradient.defined() && gradient.dim() == 1 && gradient.is_contiguous() &&
          gradient.numel() == values.numel() && gradient.scalar_type() == values.scalar_type(),
      "[optim] gradient ", shard, ": got ", gradient.defined() ? gradient.numel() : 0,
      " elements of ", gradient.defined() ? c10::toString(gradient.scalar_type()) : "nothing",
      ", expected a contiguous 1-d tensor of ", values.numel(), " of ", values.scalar_type());
}

AdamwCoefficients FlatAdamw::coefficients(size_t parameter, double gradient_scale) const {
  const AdamwHyperParameters now = groups_.hyper_parameters_of(groups_.group_of(parameter));
  const auto step = static_cast<double>(steps_[parameter]);
  return adamw_coefficients(now, std::pow(now.beta1, step), std::pow(now.beta2, step),
                            gradient_scale);
}

void FlatAdamw::update(size_t shard, const at::Tensor& gradient, std::span<const size_t> parameters,
                       std::span<const uint8_t> used, double gradient_scale) {
  groups_.require_usable();
  check_arguments(shard, gradient, used);
  for (const size_t parameter : parameters) {
    if (used[parameter] == 0) continue;
    ++steps_[parameter];
    coefficients_[parameter] = coefficients(parameter, gradient_scale);
  }
  const auto update_segments = [&]<typename T>(T* values) {
    const T* gradients = gradient.const_data_ptr<T>();
    T* first = moments_[shard].first.mutable_data_ptr<T>();
    T* second = moments_[shard].second.mutable_data_ptr<T>();
    for (const Segment& segment : shards_[shard].segments) {
      if (used[segment.parameter] == 0) continue;
      const int64_t at = segment.buffer_offset;
      adamw_update(values + at, gradients + at, first + at, second + at, segment.numel,
                   coefficients_[segment.parameter]);
    }
  };
  const at::Tensor& values = shards_[shard].values;
  if (values.scalar_type() == c10::kFloat) {
    update_segments(values.mutable_data_ptr<float>());
  } else {
    update_segments(values.mutable_data_ptr<double>());
  }
}

}  // namespace

std::unique_ptr<HostOptimizer> make_flat_adamw(const ParameterTable& table,
                                               const OptimizerPlan& plan,
                                               const std::vector<size_t>& group_of,
                                               std::vector<OptimizerShard> shards,
                                               const AllocateMoments& allocate) {
  return std::make_unique<FlatAdamw>(table, plan, group_of, std::move(shards),
                                     allocate ? allocate : AllocateMoments(&allocate_private));
}

}  // namespace tessera
