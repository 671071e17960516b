#include "tessera/zero/state/state_slices.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/where.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/process/error_text.h"

namespace tessera::internal {

StateSlices::StateSlices(const ParameterTable& table, const UnitPlan& plan, const SliceMap& slices,
                         std::vector<NamedTensor> buffers, FlatOptimizer& optimizer,
                         const MasterValues& masters, const FlatParameters& flat,
                         const FlatAverage* average, const RegisteredHook* hook)
    : table_(table),
      plan_(plan),
      slices_(slices),
      buffers_(std::move(buffers)),
      optimizer_(optimizer),
      masters_(masters),
      flat_(flat),
      average_(average),
      hook_(hook) {}

StateTable StateSlices::table(const std::vector<StateNumber>& numbers) const {
  const WholeTensors* const whole = optimizer_.whole_states();
  return {table_,
          plan_,
          buffers_,
          optimizer_.states(),
          numbers,
          average_ != nullptr,
          hook_ != nullptr ? hook_->state() : std::vector<CommHook::State>(),
          whole != nullptr ? whole->states() : std::vector<WholeTensors::State>()};
}

std::vector<std::string> StateSlices::tolerate(StateTable& table,
                                               const PartialState& partial) const {
  std::vector<std::string> lines;
  if (partial.leaves_out_frozen) {
    lines.emplace_back("leaves out the state of frozen parameters");
    table.leave_out_frozen();
  }
  if (partial.leaves_out_comm_hook) {
    lines.emplace_back("leaves out the state of communication hooks");
    table.leave_out_comm_hook();
  }
  if (!partial.may_lack) return lines;
  lines.emplace_back("may lack parameters");
  std::vector<bool> of_parameter(table_.size());
  std::vector<bool> of_group(optimizer_.groups().size(), true);
  for (size_t i = 0; i < table_.size(); ++i) {
    of_parameter[i] =
        ask(partial.may_lack, "PartialState::may_lack", table_[i].name, table_[i].tensor);
    if (of_parameter[i]) lines.push_back(absl::StrCat("may lack '", table_[i].name, "'"));
    if (table_[i].is_trainable && !of_parameter[i]) {
      of_group[optimizer_.groups().group_of(i)] = false;
    }
  }
  const bool of_all =
      std::find(of_parameter.begin(), of_parameter.end(), false) == of_parameter.end();
  table.accept_lack([&](const StateSlot& slot) {
    return slot.parameter.has_value() ? of_parameter[*slot.parameter]
           : slot.group.has_value()   ? of_group[*slot.group]
                                      : of_all;
  });
  return lines;
}

// --- Regions of units ---

std::vector<StateSlices::Slice> StateSlices::memory_of(const StateRegion& region) const {
  const Range optimizer = slices_.optimizer(layout_of(region));
  switch (region.source) {
    case StateRegion::Source::kParameters:
      return {{flat_.shard(region.index), flat_.shard_range(region.index)}};
    case StateRegion::Source::kMasters:
      return {{masters_.values()[region.index], optimizer}};
    case StateRegion::Source::kOptimizer: {
      // The optimizer decides how its states lie in memory, so ask it for each segment.
      std::vector<Slice> segments;
      for (Segment segment : layout_of(region).segments(optimizer)) {
        if (!region.slot_of(segment.parameter).has_value()) continue;
        const Range range = {segment.buffer_offset, segment.numel};
        segment.buffer_offset -= optimizer.begin;
        segments.push_back({optimizer_.state_of(region.index, segment, region.state), range});
      }
      return segments;
    }
    case StateRegion::Source::kAverage:
      return {{average_->average(region.index), optimizer}};
    case StateRegion::Source::kReplica:
    case StateRegion::Source::kWhole:
    case StateRegion::Source::kNumbers:
      break;
  }
  TORCH_INTERNAL_ASSERT(false);
}

std::vector<StatePart> StateSlices::parts_within(const StateRegion& region, Range bounds) const {
  std::vector<StatePart> parts;
  // The begins of slices, bounds and parameters are multiples of `block`, so the divisions of
  // offsets below are exact.
  const int64_t block = region.block_numel;
  for (const Slice& slice : memory_of(region)) {
    const int64_t begin = std::max(slice.range.begin, bounds.begin);
    const int64_t end = std::min(slice.range.end(), bounds.end());
    if (begin >= end) continue;
    for (const Segment& segment : layout_of(region).segments({begin, end - begin})) {
      const int64_t numel = (segment.numel + block - 1) / block;
      parts.push_back(
          {region.slot_of(segment.parameter).value(),
           {segment.parameter_offset / block, numel},
           slice.values.narrow(0, (segment.buffer_offset - slice.range.begin) / block, numel)});
    }
  }
  return parts;
}

/// Returns the rank that saves `region`, whose source is kWhole.
int StateSlices::owner(const StateRegion& region) const {
  const WholeTensors::State& state = optimizer_.whole_states()->states()[region.index];
  const std::vector<int> sharers =
      SliceMap(slices_.degrees(), slices_.world_size(), /*rank=*/0)
          .peers({SliceMap::Axis::kParameters, SliceMap::Axis::kGradients,
                  SliceMap::Axis::kOptimizer});
  return sharers[static_cast<size_t>(state.owner)];
}

std::vector<StatePart> StateSlices::kept(const StateRegion& region) const {
  if (region.source == StateRegion::Source::kWhole) {
    const at::Tensor& memory = optimizer_.whole_states()->states()[region.index].memory;
    if (!memory.defined() || memory.numel() == 0) return {};
    const int64_t numel = memory.numel();
    return {{region.first_slot, {0, numel}, memory.as_strided({numel}, {1})}};
  }
  return parts_within(region, {0, layout_of(region).numel()});
}

std::vector<StatePart> StateSlices::in_atom(const StateRegion& region) const {
  if (region.source == StateRegion::Source::kWhole) {
    return owner(region) == slices_.rank() ? kept(region) : std::vector<StatePart>();
  }
  return parts_within(region, slices_.atom(layout_of(region)));
}

/// Returns the shard's values for `part`, which belongs to a region over optimizer slices.
at::Tensor StateSlices::value_of(const StateRegion& region, const StatePart& part) const {
  const int64_t in_buffer =
      layout_of(region).parameter_range(region.position(part.slot)).begin + part.range.begin;
  return flat_.shard(region.index)
      .narrow(0, in_buffer - flat_.shard_range(region.index).begin, part.range.numel);
}

/// Like value_of(), but if masters have a dtype of their own, returns the masters' values.
at::Tensor StateSlices::master_of(const StateRegion& region, const StatePart& part) const {
  if (!plan_[region.index].precision.has_masters()) return value_of(region, part);
  const int64_t in_buffer =
      layout_of(region).parameter_range(region.position(part.slot)).begin + part.range.begin;
  return masters_.values()[region.index].narrow(
      0, in_buffer - slices_.optimizer(layout_of(region)).begin, part.range.numel);
}

void StateSlices::begin_missing(const StateTable& table, const std::vector<Presence>& presence,
                                std::vector<StateNumber>& numbers) {
  if (std::find(presence.begin(), presence.end(), Presence::kMissing) == presence.end()) return;
  const auto value = [&](size_t parameter) {
    return presence[*table.find(absl::StrCat("model.", table_[parameter].name))];
  };
  const bool has_average = average_ != nullptr && average_->updates() > 0;
  using Source = StateRegion::Source;
  // The table lists the masters of a unit before its average, which may be copied from the masters.
  for (const StateRegion& region : table.regions()) {
    if (!region.has_parts() || region.source == Source::kParameters) continue;
    for (const StatePart& part : kept(region)) {
      const size_t parameter = *table.slots()[part.slot].parameter;
      const bool is_missing = presence[part.slot] == Presence::kMissing;
      const bool has_value = value(parameter) == Presence::kThere;
      if (is_missing && region.source == Source::kMasters) {
        if (has_value) part.values.copy_(value_of(region, part));
      } else if (is_missing && region.source == Source::kWhole) {
        if (has_value) part.values.zero_();
      } else if (is_missing && region.source == Source::kOptimizer) {
        if (has_value) part.values.fill_(optimizer_.initial_state(parameter, region.state));
      } else if (is_missing) {
        if (has_value || !has_average) part.values.copy_(master_of(region, part));
      } else if (region.source == Source::kMasters && value(parameter) == Presence::kMissing &&
                 presence[part.slot] == Presence::kThere) {
        const at::Tensor shown = value_of(region, part).to(part.values.device());
        const at::Tensor rounds_to_it = part.values.to(shown.scalar_type()).eq(shown);
        part.values.copy_(at::where(rounds_to_it, part.values, shown.to(part.values.dtype())));
      }
    }
  }
  begin_hook_state(table, presence);
  const size_t first = table.regions().back().first_slot;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const bool is_missing =
        numbers[i].parameter.has_value() && presence[first + i] == Presence::kMissing;
    if (is_missing && value(*numbers[i].parameter) == Presence::kThere) numbers[i].bits = 0;
  }
}

/// Fills with zeros each tensor of the communication hook's state that the loaded state lacks,
/// provided that the loaded state has the parameters to which the tensor belongs.
void StateSlices::begin_hook_state(const StateTable& table,
                                   const std::vector<Presence>& presence) const {
  const auto has_value = [&](const Parameter& parameter) {
    return presence[*table.find(absl::StrCat("model.", parameter.name))] == Presence::kThere;
  };
  const bool has_all = std::all_of(table_.begin(), table_.end(), has_value);
  for (const StateRegion& region : table.regions()) {
    if (region.source != StateRegion::Source::kReplica) continue;
    const StateSlot& slot = table.slots()[region.first_slot];
    if (!StateTable::is_of_comm_hook(slot.name)) continue;
    const bool is_due = slot.parameter.has_value() ? has_value(table_[*slot.parameter]) : has_all;
    if (presence[region.first_slot] == Presence::kMissing && is_due) {
      table.replicas()[region.index].zero_();
    }
  }
}

}  // namespace tessera::internal
