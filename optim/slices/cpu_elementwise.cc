#include "tessera/optim/slices/cpu_elementwise.h"

#include <array>
#include <map>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/core/memory/private_memory.h"

namespace tessera::internal {

CpuElementwise::CpuElementwise(const ParameterTable& table, const OptimizerPlan& plan,
                               const std::vector<size_t>& group_of,
                               std::vector<OptimizerShard> shards, const AllocateState& allocate)
    : ElementwiseOptimizer(table, plan, group_of, std::move(shards),
                           [&allocate](int64_t numel, at::ScalarType dtype) {
                             return allocate(numel, dtype).zero_();
                           }),
      places_(shards_.size()),
      steps_(table.size(), 0) {
  std::map<const Algorithm*, ElementUpdate*> update_by;
  for (size_t group = 0; group < groups().size(); ++group) {
    const Algorithm& algorithm = groups().algorithm(group);
    TORCH_INTERNAL_ASSERT(algorithm.states.size() <= ElementUpdate::kMaxStates);
    ElementUpdate*& update = update_by[&algorithm];
    if (update == nullptr) {
      updates_.push_back(algorithm.make_update(table.size()));
      update = updates_.back().get();
    }
    update_of_group_.push_back(update);
  }
  for (size_t shard = 0; shard < shards_.size(); ++shard) place_states(shard);
  whole_ = WholeTensors::make(table, groups(), shards_);
}

/// Finds where the states of the shard's segments lie, and fills these states with their initial
/// values. Padding stays zero.
void CpuElementwise::place_states(size_t shard) {
  const std::vector<Segment>& segments = shards_[shard].segments;
  places_[shard].assign(segments.size() * ElementUpdate::kMaxStates, -1);
  for (size_t i = 0; i < segments.size(); ++i) {
    const size_t group = groups().group_of(segments[i].parameter);
    const std::vector<StateField>& states = groups().algorithm(group).states;
    for (size_t state = 0; state < states.size(); ++state) {
      const size_t kept = groups().kept_state(group, state);
      if (kept == ParameterGroups::kNoState) continue;
      place(shard, i, state) = place_of(shard, segments[i], kept);
      const double value = states[state].initial_value(groups().options(group));
      if (value != 0.0) state_of(shard, segments[i], kept).fill_(value);
    }
  }
}

void CpuElementwise::update(size_t shard, const at::Tensor& gradient,
                            std::span<const size_t> parameters, std::span<const uint8_t> used,
                            double gradient_scale) {
  groups().require_usable();
  check_arguments(shard, gradient, used);
  for (const size_t parameter : parameters) {
    if (used[parameter] == 0) continue;
    ElementUpdate& update = update_of(parameter);
    const torch::optim::OptimizerOptions& options = groups().options(groups().group_of(parameter));
    if (update.is_counted(options)) ++steps_[parameter];
    if (whole_ != nullptr) whole_->set_step(parameter, steps_[parameter]);
    update.prepare(parameter, options, steps_[parameter], gradient_scale);
  }
  if (shards_[shard].values.scalar_type() == c10::kFloat) {
    update_segments<float>(shard, gradient, used);
  } else {
    update_segments<double>(shard, gradient, used);
  }
}

template <typename T>
void CpuElementwise::update_segments(size_t shard, const at::Tensor& gradient,
                                     std::span<const uint8_t> used) {
  T* const values = shards_[shard].values.template mutable_data_ptr<T>();
  const T* const gradients = gradient.template const_data_ptr<T>();
  const std::vector<Segment>& segments = shards_[shard].segments;
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    if (used[segment.parameter] == 0) continue;
    const size_t group = groups().group_of(segment.parameter);
    std::array<void*, ElementUpdate::kMaxStates> states = {};
    const size_t count = groups().algorithm(group).states.size();
    for (size_t state = 0; state < count; ++state) {
      if (place(shard, i, state) < 0) continue;
      const at::Tensor& memory = states_[shard][groups().kept_state(group, state)];
      states[state] = static_cast<char*>(memory.mutable_data_ptr()) +
                      place(shard, i, state) * static_cast<int64_t>(memory.element_size());
    }
    const int64_t at = segment.buffer_offset;
    const bool is_whole = whole_ != nullptr && whole_->has(segment.parameter);
    T* const target = is_whole ? static_cast<T*>(whole_->begin(shard, i)) : values + at;
    update_of_group_[group]->apply(segment.parameter, target, gradients + at,
                                   std::span<void* const>(states.data(), count), segment.numel);
    if (is_whole && whole_->works_alone()) whole_->finish(shard, i);
  }
}

void CpuElementwise::set_step_counts(std::span<const int64_t> counts) {
  TORCH_INTERNAL_ASSERT(counts.size() == steps_.size());
  steps_.assign(counts.begin(), counts.end());
}

void CpuElementwise::check_arguments(size_t shard, const at::Tensor& gradient,
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

std::unique_ptr<CpuOptimizer> make_cpu_optimizer(const ParameterTable& table,
                                                 const OptimizerPlan& plan,
                                                 const std::vector<size_t>& group_of,
                                                 std::vector<OptimizerShard> shards,
                                                 const AllocateState& allocate) {
  return std::make_unique<CpuElementwise>(table, plan, group_of, std::move(shards),
                                          allocate ? allocate : AllocateState(&allocate_private));
}

}  // namespace tessera::internal
