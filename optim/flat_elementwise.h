#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "tessera/optim/elementwise_optimizer.h"

namespace tessera::internal {

/// The host's half of an algorithm: one pass over values, gradient and states per update. All that
/// differs between algorithms is in `Update`:
///   Options       the type of its options
///   Coefficients  what an element needs to know, per parameter and step
///   kStates       how many states the algorithm has, all in the values' dtype
///   is_counted(options)     whether an update with them counts as a step of the parameter
///   coefficients(options, step, gradient_scale)   `step` is the count, with this update
///   apply(T* values, const T* gradient, const std::array<T*, kStates>& states, numel,
///         coefficients)                           for float and double; the arrays do not overlap,
///                                                 and a state that is not kept is null
///   initial_state(options)  what states hold before the first update; if there is none: 0
template <typename Update>
class FlatElementwise final : public ElementwiseOptimizer<HostOptimizer> {
 public:
  FlatElementwise(const ParameterTable& table, const OptimizerPlan& plan,
                  const std::vector<size_t>& group_of, std::vector<OptimizerShard> shards,
                  const AllocateState& allocate)
      : ElementwiseOptimizer(table, plan, group_of, std::move(shards),
                             [&allocate](int64_t numel, at::ScalarType dtype) {
                               return allocate(numel, dtype).zero_();
                             }),
        steps_(table.size(), 0),
        coefficients_(table.size()) {
    TORCH_INTERNAL_ASSERT(algorithm().states.size() == Update::kStates);
    if constexpr (requires(const typename Update::Options& of) { Update::initial_state(of); }) {
      for (size_t shard = 0; shard < shards_.size(); ++shard) fill_states(shard);
    }
  }

  void update(size_t shard, const at::Tensor& gradient, std::span<const size_t> parameters,
              std::span<const uint8_t> used, double gradient_scale) override {
    groups().require_usable();
    check_arguments(shard, gradient, used);
    for (const size_t parameter : parameters) {
      if (used[parameter] == 0) continue;
      const typename Update::Options& options = options_of(parameter);
      if (Update::is_counted(options)) ++steps_[parameter];
      coefficients_[parameter] = Update::coefficients(options, steps_[parameter], gradient_scale);
    }
    if (shards_[shard].values.scalar_type() == c10::kFloat) {
      update_segments<float>(shard, gradient, used);
    } else {
      update_segments<double>(shard, gradient, used);
    }
  }

  std::vector<int64_t> step_counts() const override { return steps_; }
  void set_step_counts(std::span<const int64_t> counts) override {
    TORCH_INTERNAL_ASSERT(counts.size() == steps_.size());
    steps_.assign(counts.begin(), counts.end());
  }

 private:
  const typename Update::Options& options_of(size_t parameter) const {
    return static_cast<const typename Update::Options&>(
        groups().options(groups().group_of(parameter)));
  }

  /// Padding stays zero.
  void fill_states(size_t shard) {
    for (const Segment& segment : shards_[shard].segments) {
      const double value = Update::initial_state(options_of(segment.parameter));
      for (at::Tensor& state : states_[shard]) {
        state.narrow(0, segment.buffer_offset, segment.numel).fill_(value);
      }
    }
  }

  template <typename T>
  void update_segments(size_t shard, const at::Tensor& gradient, std::span<const uint8_t> used) {
    T* const values = shards_[shard].values.template mutable_data_ptr<T>();
    const T* const gradients = gradient.template const_data_ptr<T>();
    std::array<T*, Update::kStates> states = {};
    for (size_t i = 0, kept = 0; i < states.size(); ++i) {
      if (groups().keeps(i)) states[i] = states_[shard][kept++].template mutable_data_ptr<T>();
    }
    for (const Segment& segment : shards_[shard].segments) {
      if (used[segment.parameter] == 0) continue;
      const int64_t at = segment.buffer_offset;
      std::array<T*, Update::kStates> own = states;
      for (T*& state : own) {
        if (state != nullptr) state += at;
      }
      Update::apply(values + at, gradients + at, own, segment.numel,
                    coefficients_[segment.parameter]);
    }
  }

  void check_arguments(size_t shard, const at::Tensor& gradient,
                       std::span<const uint8_t> used) const {
    TORCH_CHECK(used.size() == steps_.size(), "[optim] used: got ", used.size(),
                " entries, expected ", steps_.size());
    TORCH_CHECK(shard < shards_.size(), "[optim] shard: got number ", shard,
                ", expected less than ", shards_.size());
    const at::Tensor& values = shards_[shard].values;
    TORCH_CHECK(
        gradient.defined() && gradient.dim() == 1 && gradient.is_contiguous() &&
            gradient.numel() == values.numel() && gradient.scalar_type() == values.scalar_type(),
        "[optim] gradient ", shard, ": got ", gradient.defined() ? gradient.numel() : 0,
        " elements of ", gradient.defined() ? c10::toString(gradient.scalar_type()) : "nothing",
        ", expected a contiguous 1-d tensor of ", values.numel(), " of ", values.scalar_type());
  }

  // Per entry of the table.
  std::vector<int64_t> steps_;
  std::vector<typename Update::Coefficients> coefficients_;
};

/// For Algorithm::make_host.
template <typename Update>
std::unique_ptr<HostOptimizer> make_flat_elementwise(const ParameterTable& table,
                                                     const OptimizerPlan& plan,
                                                     const std::vector<size_t>& group_of,
                                                     std::vector<OptimizerShard> shards,
                                                     const AllocateState& allocate) {
  return std::make_unique<FlatElementwise<Update>>(table, plan, group_of, std::move(shards),
                                                   allocate);
}

}  // namespace tessera::internal
