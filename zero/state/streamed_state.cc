#include "tessera/zero/state/streamed_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/layout/read_only_memory.h"
#include "tessera/core/process/error_text.h"
#include "tessera/zero/parameters/registration.h"
#include "tessera/zero/state/average_remedy.h"
#include "tessera/zero/state/eight_bit_remedy.h"
#include "tessera/zero/state/lack_remedy.h"
#include "tessera/zero/state/memory_order.h"

namespace tessera::internal {

namespace {

using Source = StateRegion::Source;

/// Every entry of the table, without ranges.
std::vector<StateOutline> outlines_of(const StateTable& table) {
  std::vector<StateOutline> entries;
  for (const StateSlot& slot : table.slots()) entries.push_back({slot.name, slot.form, {}});
  return entries;
}

/// The regions, those of the widest elements first and otherwise in the table's order.
std::vector<StateRegion> widest_first(const StateTable& table) {
  std::vector<StateRegion> regions;
  for (const StateRegion& region : table.regions()) {
    if (region.slots > 0) regions.push_back(region);
  }
  const auto width = [&](const StateRegion& region) {
    return c10::elementSize(table.slots()[region.first_slot].form.dtype);
  };
  std::stable_sort(regions.begin(), regions.end(),
                   [&](const StateRegion& a, const StateRegion& b) { return width(a) > width(b); });
  return regions;
}

/// A number as a tensor of one element.
at::Tensor tensor_of(const StateNumber& number) {
  at::Tensor value = at::empty({1}, number.dtype);
  std::memcpy(value.mutable_data_ptr(), &number.bits, sizeof(number.bits));
  return value;
}

/// A line for each entry that this run lacks in `source`, or that it cannot use. Another algorithm
/// comes first, which is why its states do not fit.
std::vector<std::string> mismatches(const StateTable& table, const StateSource& source) {
  std::vector<std::string> problems, others;
  const auto add = [&](const std::string& name, std::string problem) {
    (names_algorithm(name) ? problems : others).push_back(std::move(problem));
  };
  for (const StateSlot& slot : table.slots()) {
    const auto found = source.entries().find(slot.name);
    if (found == source.entries().end()) {
      if (!slot.may_lack && !source.leaves(slot.name))
        add(slot.name, absl::StrCat("'", slot.name, "': missing"));
    } else if (std::string problem = mismatch(found->second, slot); !problem.empty()) {
      add(slot.name, absl::StrCat("'", slot.name, "': ", problem));
    }
  }
  for (const auto& [name, entry] : source.entries()) {
    if (table.find(name) != nullptr || table.is_left_out(name)) continue;
    add(name, table.unknown_entry(name));
  }
  problems.insert(problems.end(), others.begin(), others.end());
  return problems;
}

/// What a rank reads of a source whose entries match the table, and the reading of it.
class Reading {
 public:
  Reading(const StateTable& table, StateSource& source) : table_(table), source_(source) {}

  /// Whether the source has the slot; otherwise the run keeps its own values.
  bool has(size_t slot) const { return source_.entries().contains(table_.slots()[slot].name); }

  /// Whether the source has the slot's elements in the slot's own order.
  bool is_in_order(size_t slot) const {
    const StateEntry& form = table_.slots()[slot].form;
    return form.numel() < 2 || saved(slot).strides == form.strides;
  }

  /// Elements `range` of `slot` into `to`: [range.numel], anywhere.
  void read(size_t slot, Range range, const at::Tensor& to) {
    if (!is_in_order(slot)) {
      to.copy_(converted(slot).narrow(0, range.begin, range.numel));
    } else if (to.device().is_cpu()) {
      source_.read(table_.slots()[slot].name, range.begin, to);
    } else {
      const at::Tensor values = at::empty({range.numel}, to.scalar_type());
      source_.read(table_.slots()[slot].name, range.begin, values);
      to.copy_(values);
    }
  }

  /// All elements of `slot`, with its sizes and strides.
  at::Tensor whole(size_t slot) {
    const StateEntry& form = table_.slots()[slot].form;
    const at::Tensor values = at::empty({form.numel()}, form.dtype);
    read(slot, {0, form.numel()}, values);
    return values.as_strided(form.sizes, form.strides);
  }

 private:
  const StateEntry& saved(size_t slot) const {
    return source_.entries().at(table_.slots()[slot].name);
  }

  /// All elements in the slot's order. A slot's parts are read one after the other, so one is kept.
  const at::Tensor& converted(size_t slot) {
    if (!converted_.defined() || converted_slot_ != slot) {
      const StateEntry& form = table_.slots()[slot].form;
      converted_ = at::Tensor();
      const at::Tensor values = at::empty({form.numel()}, form.dtype);
      source_.read(table_.slots()[slot].name, 0, values);
      converted_ = reordered(values, form, saved(slot).strides);
      converted_slot_ = slot;
    }
    return converted_;
  }

  const StateTable& table_;
  StateSource& source_;
  at::Tensor converted_;
  size_t converted_slot_ = 0;
};

/// Which tensors lie in memory that this process may not write and would take other values, a line
/// each; "" if none.
std::string unwritable(const StateTable& table, Reading& reading, const ReadOnlyMemory& read_only) {
  std::vector<std::string> lines;
  for (const StateRegion& region : table.regions()) {
    if (region.source != Source::kReplica || !reading.has(region.first_slot)) continue;
    const at::Tensor& replica = table.replicas()[region.index];
    if (!read_only.holds(replica)) continue;
    const std::string problem = read_only.problem(replica, reading.whole(region.first_slot));
    if (problem.empty()) continue;
    lines.push_back(absl::StrCat("'", table.slots()[region.first_slot].name, "' ", problem));
  }
  return absl::StrJoin(lines, "\n  ");
}

/// All that this rank will read, entry by entry.
std::vector<StateOutline> needed_by(const StateTable& table, const StateSlices& slices,
                                    const Reading& reading) {
  std::vector<StateOutline> entries = outlines_of(table);
  const auto need = [&](size_t slot, Range range) {
    const int64_t numel = entries[slot].form.numel();
    if (!reading.has(slot)) return;
    if (reading.is_in_order(slot)) {
      if (range.numel > 0) entries[slot].ranges.push_back(range);
    } else if (entries[slot].ranges.empty()) {
      entries[slot].ranges.push_back({0, numel});
    }
  };
  for (const StateRegion& region : table.regions()) {
    if (region.has_parts()) {
      for (const StatePart& part : slices.kept(region)) need(part.slot, part.range);
    } else {
      for (size_t i = region.first_slot; i < region.first_slot + region.slots; ++i) {
        need(i, {0, table.slots()[i].form.numel()});
      }
    }
  }
  return entries;
}

}  // namespace

// --- Saving ---

StreamedState::Saving StreamedState::agree_to_save(const EngineCounters& counters,
                                                   std::string problem) {
  require_equal(group_, lines_of(slices_.buffers()), "write_state");
  if (problem.empty()) problem = slices_.problem();
  std::vector<StateNumber> numbers = slices_.numbers(counters);
  StateTable table = table_on_all_ranks(group_, slices_, numbers, std::move(problem));
  return {std::move(table), std::move(numbers)};
}

std::vector<StateOutline> StreamedState::entries(const Saving& saving) {
  return outlines_of(saving.table);
}

void StreamedState::save(const Saving& saving, StateSink& sink) const {
  const at::NoGradGuard no_grad;
  const StateTable& table = saving.table;
  const bool is_first = group_.rank() == 0;

  std::vector<StateOutline> entries = outlines_of(table);
  for (const StateRegion& region : table.regions()) {
    if (region.has_parts()) {
      for (const StatePart& part : slices_.in_atom(region)) {
        entries[part.slot].ranges.push_back(part.range);
      }
    } else if (is_first) {
      for (size_t i = region.first_slot; i < region.first_slot + region.slots; ++i) {
        const int64_t numel = entries[i].form.numel();
        if (numel > 0) entries[i].ranges.push_back({0, numel});
      }
    }
  }
  sink.begin(entries);

  for (const StateRegion& region : widest_first(table)) {
    if (region.has_parts()) {
      for (const StatePart& part : slices_.in_atom(region)) {
        sink.write(part.slot, part.range.begin, part.values.cpu());
      }
    } else if (is_first && region.source == Source::kReplica) {
      const at::Tensor& tensor = table.replicas()[region.index];
      if (tensor.numel() == 0) continue;
      sink.write(region.first_slot, 0,
                 copy_in_order(tensor, table.slots()[region.first_slot].form).cpu());
    } else if (is_first) {
      for (size_t i = 0; i < region.slots; ++i) {
        sink.write(region.first_slot + i, 0, tensor_of(saving.numbers[i]));
      }
    }
  }
}

// --- Loading ---

void StreamedState::load(StateSource& source, EngineCounters& counters,
                         const PartialState& partial) {
  const at::NoGradGuard no_grad;
  std::vector<StateNumber> numbers = slices_.numbers(counters);
  const StateTable table = table_on_all_ranks(group_, slices_, numbers, partial);
  Reading reading(table, source);
  const ReadOnlyMemory read_only;

  // A source may throw, and only here: the other ranks must hear of it.
  using Presence = StateSlices::Presence;
  std::vector<Presence> presence;
  std::string problem;
  try {
    for (size_t slot = 0; slot < table.slots().size(); ++slot) {
      presence.push_back(reading.has(slot)                         ? Presence::kThere
                         : source.leaves(table.slots()[slot].name) ? Presence::kLeft
                                                                   : Presence::kMissing);
    }
    problem = absl::StrJoin(mismatches(table, source), "\n  ");
    problem = eight_bit_remedy(problem) + problem + average_remedy(table, problem);
    if (const std::string remedy = lack_remedy(table, problem); !remedy.empty()) {
      problem = absl::StrCat(remedy, "\n  ", problem);  // first: of many lines the last are cut
    }
    if (problem.empty()) problem = source.problem_of(needed_by(table, slices_, reading));
    if (problem.empty()) {
      const size_t first = table.regions().back().first_slot;
      for (size_t i = 0; i < numbers.size(); ++i) {
        if (!reading.has(first + i)) continue;
        const at::Tensor value = at::empty({1}, numbers[i].dtype);
        source.read(table.slots()[first + i].name, 0, value);
        std::memcpy(&numbers[i].bits, value.const_data_ptr(), sizeof(numbers[i].bits));
      }
      problem = absl::StrJoin(slices_.problems_of(numbers), "; ");
    }
    if (problem.empty()) problem = unwritable(table, reading, read_only);
  } catch (...) {
    problem = present_error_text();
  }
  if (!problem.empty()) {
    problem = absl::StrCat(
        "read_state: got a state that does not fit this run or cannot be read; nothing was "
        "changed:\n  ",
        problem);
  }
  refuse_on_all_ranks(group_, problem, "state");

  for (const StateRegion& region : table.regions()) {
    if (region.has_parts()) {
      for (const StatePart& part : slices_.kept(region)) {
        if (reading.has(part.slot)) reading.read(part.slot, part.range, part.values);
      }
    } else if (region.source == Source::kReplica && reading.has(region.first_slot)) {
      const at::Tensor& replica = table.replicas()[region.index];
      if (replica.numel() == 0 || read_only.holds(replica)) continue;  // unwritable(): it is equal
      replica.copy_(reading.whole(region.first_slot));
    }
  }
  slices_.begin_missing(table, presence, numbers);
  slices_.write(numbers, counters);
}

}  // namespace tessera::internal
