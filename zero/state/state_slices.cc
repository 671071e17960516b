#include "tessera/zero/state/state_slices.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"

namespace tessera::internal {

StateSlices::StateSlices(const ParameterTable& table, const UnitPlan& plan, const SliceMap& slices,
                         std::vector<NamedTensor> buffers, FlatOptimizer& optimizer,
                         const MasterValues& masters, const FlatParameters& flat,
                         const FlatAverage* average)
    : table_(table),
      plan_(plan),
      slices_(slices),
      buffers_(std::move(buffers)),
      optimizer_(optimizer),
      masters_(masters),
      flat_(flat),
      average_(average) {}

// --- Numbers ---

std::vector<StateNumber> StateSlices::numbers(const EngineCounters& counters) const {
  return read_numbers(table_, optimizer_, counters);
}

std::vector<std::string> StateSlices::problems_of(const std::vector<StateNumber>& numbers) const {
  return internal::problems_of(numbers, optimizer_);
}

void StateSlices::write(const std::vector<StateNumber>& numbers, EngineCounters& counters) {
  write_numbers(numbers, table_, optimizer_, counters);
}

StateTable StateSlices::table(const std::vector<StateNumber>& numbers) const {
  return {table_, plan_, buffers_, optimizer_.states(), numbers, average_ != nullptr};
}

std::string StateSlices::problem() const { return optimizer_.groups().problem(); }

// --- Regions of units ---

std::vector<StateSlices::Slice> StateSlices::memory_of(const StateRegion& region) const {
  const Range optimizer = slices_.optimizer(layout_of(region));
  switch (region.source) {
    case StateRegion::Source::kParameters:
      return {{flat_.shard(region.index), flat_.shard_range(region.index)}};
    case StateRegion::Source::kMasters:
      return {{masters_.values()[region.index], optimizer}};
    case StateRegion::Source::kOptimizer: {
      // How the optimizer lays out its memory is its own business: it gives it by segment.
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
    case StateRegion::Source::kNumbers:
      break;
  }
  TORCH_INTERNAL_ASSERT(false);
}

std::vector<StatePart> StateSlices::parts_within(const StateRegion& region, Range bounds) const {
  std::vector<StatePart> parts;
  // Slices, bounds and parameters all begin with a block.
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

std::vector<StatePart> StateSlices::kept(const StateRegion& region) const {
  return parts_within(region, {0, layout_of(region).numel()});
}

std::vector<StatePart> StateSlices::in_atom(const StateRegion& region) const {
  return parts_within(region, slices_.atom(layout_of(region)));
}

StateTable table_on_all_ranks(ProcessGroup& group, const StateSlices& slices,
                              const std::vector<StateNumber>& numbers, std::string problem) {
  std::optional<StateTable> table;
  try {
    table.emplace(slices.table(numbers));
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  }
  refuse_on_all_ranks(group, problem, "state");
  return *std::move(table);
}

}  // namespace tessera::internal
