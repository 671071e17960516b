#include "tessera/zero/step/whole_tensor_plan.h"

#include <algorithm>
#include <numeric>

#include "tessera/core/numbers/round_up.h"

namespace tessera::internal {
namespace {

constexpr int64_t kAlignmentBytes = 64;

int64_t aligned(int64_t bytes) { return round_up(bytes, kAlignmentBytes); }

}  // namespace

WholeTensorPlan::WholeTensorPlan(const UnitPlan& plan, const std::vector<Parameter>& parameters,
                                 const std::vector<int>& slices)
    : scratch_bytes_(slices.size(), 0), state_bytes_(slices.size(), 0) {
  for (const Parameter& each : parameters) {
    const UnitPlan::Place place = plan.place(each.parameter);
    const PlannedUnit& unit = plan[place.unit];
    entries_.push_back({.parameter = each.parameter,
                        .unit = place.unit,
                        .dtype = unit.precision.master,
                        .travels = each.travels,
                        .has_values = each.has_values,
                        .numel = unit.layout.parameter_range(place.position).numel,
                        .pieces = {},
                        .states = {}});
  }
  choose_owners(parameters);
  place_states(parameters);
  for (size_t i = 0; i < entries_.size(); ++i) {
    // Skips parameters that need no scratch memory: all that do not travel and, if one rank has all
    // slices, all that are updated in place.
    if (!entries_[i].travels || (entries_[i].has_values && ranks() == 1)) continue;
    int64_t& scratch_bytes = scratch_bytes_[static_cast<size_t>(entries_[i].owner)];
    scratch_bytes =
        std::max(scratch_bytes, aligned(entries_[i].bytes(parameters[i].scratch_numel)));
  }
  if (ranks() == 1) {
    for (const Entry& entry : entries_) {
      whole_bytes_ = std::max(whole_bytes_, aligned(entry.bytes(entry.numel)));
    }
    return;
  }
  std::vector<int64_t> end(slices.size(), 0);
  for (const bool travel : {true, false}) {
    for (int rank = 0; rank < ranks(); ++rank) {
      const auto at = static_cast<size_t>(rank);
      end[at] = place_pieces(plan, rank, slices[at], travel, travel ? 0 : travelling_bytes_);
    }
    directions_bytes_ = *std::max_element(end.begin(), end.end());
    if (travel) travelling_bytes_ = directions_bytes_;
  }
  place_results();
}

void WholeTensorPlan::choose_owners(const std::vector<Parameter>& parameters) {
  std::vector<size_t> by_cost(parameters.size());
  std::iota(by_cost.begin(), by_cost.end(), size_t{0});
  std::stable_sort(by_cost.begin(), by_cost.end(),
                   [&](size_t a, size_t b) { return parameters[a].cost > parameters[b].cost; });
  std::vector<int64_t> load(static_cast<size_t>(ranks()), 0);
  for (const size_t i : by_cost) {
    if (!parameters[i].travels) continue;
    const auto least = std::min_element(load.begin(), load.end());
    *least += parameters[i].cost;
    entries_[i].owner = static_cast<int>(least - load.begin());
  }
}

/// Places the pieces of `rank`, whose slice is `slice`, one after the other in its memory for
/// directions, from offset `end` on. Takes only parameters whose directions travel, or, if `travel`
/// is false, only the others. Returns the offset after the last piece.
int64_t WholeTensorPlan::place_pieces(const UnitPlan& plan, int rank, int slice, bool travel,
                                      int64_t end) {
  for (Entry& entry : entries_) {
    if (entry.travels != travel) continue;
    const PlannedUnit& unit = plan[entry.unit];
    const size_t position = plan.place(entry.parameter).position;
    const std::vector<Segment> segments = unit.layout.segments(unit.layout.part(slice, ranks()));
    for (size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].parameter != position) continue;
      entry.pieces.push_back({.rank = rank,
                              .segment = i,
                              .range = {segments[i].parameter_offset, segments[i].numel},
                              .direction = end});
      end += aligned(entry.bytes(segments[i].numel));
      if (!entry.has_values) continue;
      entry.pieces.back().values = end;
      end += aligned(entry.bytes(segments[i].numel));
    }
  }
  return end;
}

void WholeTensorPlan::place_states(const std::vector<Parameter>& parameters) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    int64_t& end = state_bytes_[static_cast<size_t>(entries_[i].owner)];
    for (const WholeState& state : parameters[i].states) {
      entries_[i].states.push_back(end);
      end += aligned(state.bytes(entries_[i].dtype));
    }
  }
}

void WholeTensorPlan::place_results() {
  std::vector<int64_t> end(static_cast<size_t>(ranks()), 0);
  for (Entry& entry : entries_) {
    if (!entry.travels) continue;
    int64_t& of_owner = end[static_cast<size_t>(entry.owner)];
    entry.result = of_owner;
    of_owner += aligned(entry.bytes(entry.numel));
  }
  results_bytes_ = *std::max_element(end.begin(), end.end());
}

int64_t WholeTensorPlan::received_bytes(int rank) const {
  int64_t bytes = 0;
  for (const Entry& entry : entries_) {
    for (const Piece& piece : entry.pieces) {
      if (!entry.travels) continue;
      if ((entry.owner == rank) == (piece.rank == rank)) continue;
      const bool has_both = entry.has_values && entry.owner == rank;
      bytes += (has_both ? 2 : 1) * entry.bytes(piece.range.numel);
    }
  }
  return bytes;
}

}  // namespace tessera::internal
