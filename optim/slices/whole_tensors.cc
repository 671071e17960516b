#include "tessera/optim/slices/whole_tensors.h"

#include <cmath>
#include <cstring>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/core/memory/private_memory.h"
#include "tessera/core/step/grad_norm.h"

namespace tessera::internal {
namespace {

/// Returns the first `numel` elements of `dtype` in `bytes`.
at::Tensor elements_of(const at::Tensor& bytes, int64_t numel, at::ScalarType dtype) {
  return bytes.narrow(0, 0, numel * static_cast<int64_t>(c10::elementSize(dtype))).view(dtype);
}

}  // namespace

std::unique_ptr<WholeTensors> WholeTensors::make(const ParameterTable& table,
                                                 const ParameterGroups& groups,
                                                 const std::vector<OptimizerShard>& shards) {
  std::unique_ptr<WholeTensors> whole(new WholeTensors(table, groups, shards));
  return whole->parameters_.empty() ? nullptr : std::move(whole);
}

WholeTensors::WholeTensors(const ParameterTable& table, const ParameterGroups& groups,
                           const std::vector<OptimizerShard>& shards)
    : table_(table),
      groups_(groups),
      shards_(shards),
      update_of_(table.size(), nullptr),
      wholes_(table.size()),
      states_of_(table.size()),
      steps_(table.size(), 0) {
  for (size_t parameter = 0; parameter < table.size(); ++parameter) {
    const Algorithm& algorithm = groups.algorithm(groups.group_of(parameter));
    if (algorithm.make_whole == nullptr || !table[parameter].is_trainable ||
        table[parameter].tensor.numel() == 0) {
      continue;
    }
    std::unique_ptr<WholeUpdate>& update = updates_[&algorithm];
    if (update == nullptr) update = algorithm.make_whole();
    update_of_[parameter] = update.get();
    parameters_.push_back(parameter);
    list_states(parameter, algorithm);
  }
  for (const OptimizerShard& shard : shards) {
    places_.emplace_back(shard.segments.size());
    places_of_values_.emplace_back(shard.segments.size());
  }
}

void WholeTensors::list_states(size_t parameter, const Algorithm& algorithm) {
  if (algorithm.whole_states == nullptr) return;
  for (WholeState& state : algorithm.whole_states(options(parameter), sizes(parameter))) {
    states_of_[parameter].resize(state.number + 1);
    states_.push_back({.parameter = parameter, .form = std::move(state)});
  }
}

void WholeTensors::keep(size_t state, int owner, const at::Tensor& memory) {
  State& kept = states_.at(state);
  kept.owner = owner;
  if (!memory.defined()) return;
  kept.memory =
      memory.as_strided(kept.form.sizes, kept.form.strides(table_[kept.parameter].tensor));
  states_of_[kept.parameter][kept.form.number] = kept.memory;
}

int64_t WholeTensors::cost(size_t parameter) const {
  return update_of_[parameter]->cost(sizes(parameter));
}

int64_t WholeTensors::scratch_numel(size_t parameter) const {
  return update_of_[parameter]->scratch_numel(sizes(parameter));
}

void WholeTensors::place(size_t shard, size_t segment, at::Tensor piece) {
  const OptimizerShard& in = shards_.at(shard);
  TORCH_INTERNAL_ASSERT(piece.numel() == in.segments.at(segment).numel &&
                        piece.scalar_type() == in.values.scalar_type());
  places_[shard][segment] = std::move(piece);
}

void WholeTensors::place_values(size_t shard, size_t segment, at::Tensor piece) {
  TORCH_INTERNAL_ASSERT(piece.numel() == shards_.at(shard).segments.at(segment).numel);
  places_of_values_[shard][segment] = std::move(piece);
}

void WholeTensors::reserve(int64_t scratch_bytes, int64_t whole_bytes) {
  scratch_ = allocate_private(scratch_bytes, at::kByte);
  if (whole_bytes > 0) whole_ = allocate_private(whole_bytes, at::kByte);
}

at::Tensor WholeTensors::scratch(int64_t numel, at::ScalarType dtype) const {
  return elements_of(scratch_, numel, dtype);
}

int64_t WholeTensors::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& memory : {scratch_, whole_}) {
    if (memory.defined()) bytes += static_cast<int64_t>(memory.nbytes());
  }
  return bytes;
}

/// Returns the memory for a segment's piece of the direction: [segment numel].
at::Tensor WholeTensors::piece(size_t shard, size_t segment) const {
  if (!works_alone()) {
    TORCH_INTERNAL_ASSERT(places_[shard][segment].defined(), "no place for a direction");
    return places_[shard][segment];
  }
  const OptimizerShard& in = shards_[shard];
  const Segment& all = in.segments[segment];
  TORCH_INTERNAL_ASSERT(all.numel == table_[all.parameter].tensor.numel(), "alone with a piece");
  return elements_of(whole_, all.numel, in.values.scalar_type());
}

at::Tensor WholeTensors::values_of(size_t shard, size_t segment) const {
  const Segment& of = shards_[shard].segments[segment];
  return shards_[shard].values.narrow(0, of.buffer_offset, of.numel);
}

void WholeTensors::set_step(size_t parameter, int64_t step) { steps_[parameter] = step; }

void* WholeTensors::begin(size_t shard, size_t segment) const {
  const at::Tensor direction = piece(shard, segment);
  const size_t parameter = shards_[shard].segments[segment].parameter;
  const auto take_values = [&](const at::Tensor& to) {
    std::memcpy(to.mutable_data_ptr(), values_of(shard, segment).const_data_ptr(), to.nbytes());
  };
  if (needs_norms(parameter)) {
    take_values(direction);
  } else if (needs_values(parameter) && !works_alone()) {
    take_values(places_of_values_[shard][segment]);
  }
  return direction.mutable_data_ptr();
}

void WholeTensors::finish(size_t shard, size_t segment) {
  const size_t parameter = shards_[shard].segments[segment].parameter;
  if (needs_values(parameter)) {
    return update(parameter, values_of(shard, segment), piece(shard, segment));
  }
  if (needs_norms(parameter)) {
    Squares sums;
    add_squares_of(shard, segment, sums);
    set_norms(parameter, sums);
  } else {
    transform(parameter, piece(shard, segment));
  }
  apply(shard, segment, whole_.const_data_ptr());
}

void WholeTensors::add_squares_of(size_t shard, size_t segment, Squares& sums) const {
  Segment of = shards_[shard].segments[segment];
  add_squares(shards_[shard].values, of, sums.of_values);
  of.buffer_offset = 0;
  add_squares(piece(shard, segment), of, sums.of_direction);
}

void WholeTensors::set_norms(size_t parameter, const Squares& sums) {
  wholes_[parameter].norm_of_values = std::sqrt(sums.of_values.value());
  wholes_[parameter].norm_of_direction = std::sqrt(sums.of_direction.value());
}

void WholeTensors::transform(size_t parameter, const at::Tensor& direction) const {
  update_of_[parameter]->transform(
      options(parameter), view_like(direction, {0, direction.numel()}, table_[parameter].tensor),
      elements_of(scratch_, scratch_numel(parameter), direction.scalar_type()));
}

void WholeTensors::update(size_t parameter, const at::Tensor& values,
                          const at::Tensor& gradient) const {
  const at::Tensor& like = table_[parameter].tensor;
  update_of_[parameter]->update(options(parameter),
                                {.values = view_like(values, {0, values.numel()}, like),
                                 .gradient = view_like(gradient, {0, gradient.numel()}, like),
                                 .states = states_of_[parameter],
                                 .step = steps_[parameter]});
}

void WholeTensors::apply(size_t shard, std::span<const uint8_t> used) {
  const std::vector<Segment>& segments = shards_[shard].segments;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (used[segments[i].parameter] == 0 || !has(segments[i].parameter)) continue;
    apply(shard, i, places_[shard][i].const_data_ptr());
  }
}

void WholeTensors::apply(size_t shard, size_t segment, const void* result) {
  const at::Tensor& values = shards_[shard].values;
  const Segment& piece = shards_[shard].segments[segment];
  const auto update = [&]<typename T>(T* of_shard) {
    WholeUpdate::Whole& whole = wholes_[piece.parameter];
    whole.sizes = sizes(piece.parameter);
    update_of_[piece.parameter]->apply(options(piece.parameter), whole,
                                       of_shard + piece.buffer_offset,
                                       static_cast<const T*>(result), piece.numel);
  };
  if (values.scalar_type() == at::kFloat) {
    update(values.mutable_data_ptr<float>());
  } else {
    update(values.mutable_data_ptr<double>());
  }
}

}  // namespace tessera::internal
