#include "tessera/zero/state/streamed_state.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/layout/read_only_memory.h"
#include "tessera/core/options/problems.h"
#include "tessera/core/process/error_text.h"
#include "tessera/zero/buffers/replica_sync.h"
#include "tessera/zero/parameters/model_change_check.h"
#include "tessera/zero/state/state_remedies.h"
#include "tessera/zero/state/stride_order.h"

namespace tessera::internal {

namespace {

using Source = StateRegion::Source;

/// Returns every entry of the table, without ranges.
std::vector<StateOutline> outlines_of(const StateTable& table) {
  std::vector<StateOutline> entries;
  for (const StateSlot& slot : table.slots()) entries.push_back({slot.name, slot.form, {}});
  return entries;
}

/// Returns the regions with the widest elements first, otherwise in the table's order.
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

/// Returns a number as a tensor of one element.
at::Tensor tensor_of(const StateNumber& number) {
  at::Tensor value = at::empty({1}, number.dtype);
  std::memcpy(value.mutable_data_ptr(), &number.bits, sizeof(number.bits));
  return value;
}

/// Returns a line for each entry that is missing in `source` or that this run cannot use. Lines
/// about another algorithm come first, because they explain the others.
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
  append(problems, std::move(others));
  return problems;
}

/// Reads from a source whose entries match the table.
class Reading {
 public:
  Reading(const StateTable& table, StateSource& source) : table_(table), source_(source) {}

  /// Returns true if the source has the slot; otherwise the run keeps its own values.
  bool has(size_t slot) const { return source_.entries().contains(table_.slots()[slot].name); }

  /// Returns true if the source has any slot of the region.
  bool has_any(const StateRegion& region) const {
    for (size_t i = 0; i < region.slots; ++i) {
      if (has(region.first_slot + i)) return true;
    }
    return false;
  }
  /// Returns, for each slot, whether the source has it.
  std::vector<StateSlices::Presence> presence() const {
    using Presence = StateSlices::Presence;
    std::vector<Presence> presence;
    for (size_t slot = 0; slot < table_.slots().size(); ++slot) {
      presence.push_back(has(slot)                                   ? Presence::kThere
                         : source_.leaves(table_.slots()[slot].name) ? Presence::kLeft
                                                                     : Presence::kMissing);
    }
    return presence;
  }

  /// Returns true if the source has the slot's elements in the slot's own order.
  bool is_in_order(size_t slot) const {
    const StateEntry& form = table_.slots()[slot].form;
    return form.numel() < 2 || saved(slot).strides == form.strides;
  }

  /// Reads elements `range` of `slot` into `to`: [range.numel], on any device.
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

  /// Returns all elements of `slot`, with its sizes and strides.
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

  /// Returns all elements of `slot` in the slot's order. Keeps the elements until another slot is
  /// asked for, because a slot's parts are read one after the other.
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

/// Returns all that this rank will read, entry by entry.
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

/// Returns what `body` returns, or the text of what it throws.
template <typename Body>
std::string problem_in(Body&& body) {
  try {
    return body();
  } catch (...) {
    return present_error_text();
  }
}

/// Returns why `source` cannot be read: which entries are missing or have another form, or the
/// problem that the source itself reports; "" if it can be read.
std::string problem_of(StateSource& source, const StateTable& table, const StateSlices& slices,
                       const Reading& reading) {
  const std::string problem =
      with_remedies(table, absl::StrJoin(mismatches(table, source), "\n  "));
  return problem.empty() ? source.problem_of(needed_by(table, slices, reading)) : problem;
}

}  // namespace

// --- Saving ---

StateContents StreamedState::contents(const EngineCounters& counters) const {
  std::vector<StateNumber> numbers =
      read_numbers(slices_.parameters(), slices_.optimizer(), counters);
  StateTable table = slices_.table(numbers);
  return {std::move(table), std::move(numbers)};
}

StateContents StreamedState::agree_to_save(const char* call, const EngineCounters& counters,
                                           std::string problem,
                                           std::vector<std::string> arguments) {
  append(arguments, lines_of(slices_.buffers()));
  require_equal(group_, arguments, call);
  if (problem.empty()) problem = slices_.optimizer().groups().problem();
  return agree(counters, std::move(problem), nullptr);
}

StateContents StreamedState::agree_to_load(const EngineCounters& counters,
                                           const PartialState& partial) {
  return agree(counters, "", &partial);
}

/// Returns contents(). Throws on all ranks if contents() fails on any rank, or if any rank has a
/// `problem`. If `partial` is not null, lets the state lack the entries that `partial` allows.
StateContents StreamedState::agree(const EngineCounters& counters, std::string problem,
                                   const PartialState* partial) {
  std::optional<StateContents> agreed;
  std::vector<std::string> lines;
  try {
    agreed = contents(counters);
    if (partial != nullptr) lines = slices_.tolerate(agreed->table, *partial);
  } catch (...) {  // also catches what the user's predicate throws
    problem = present_error_text();
  }
  refuse_on_all_ranks(group_, problem, "state");
  if (partial != nullptr) require_equal(group_, lines, "state: PartialState");
  return *std::move(agreed);
}

std::vector<StateOutline> StreamedState::entries(const StateContents& contents) {
  return outlines_of(contents.table);
}

void StreamedState::save(const StateContents& contents, StateSink& sink, const Wants& wants) const {
  const at::NoGradGuard no_grad;
  const StateTable& table = contents.table;
  const bool is_first = group_.rank() == 0;

  std::vector<StateOutline> entries;
  // For each slot that `wants` selects: its index in `entries`.
  std::vector<std::optional<size_t>> entry_of(table.slots().size());
  for (const StateRegion& region : table.regions()) {
    for (size_t i = region.first_slot; i < region.first_slot + region.slots; ++i) {
      const StateSlot& slot = table.slots()[i];
      if (wants && !wants(region, slot)) continue;
      entry_of[i] = entries.size();
      entries.push_back({slot.name, slot.form, {}});
      const bool writes_all = is_first && !region.has_parts() && slot.form.numel() > 0;
      if (writes_all) entries.back().ranges.push_back({0, slot.form.numel()});
    }
    if (!region.has_parts()) continue;
    for (const StatePart& part : slices_.in_atom(region)) {
      if (const auto entry = entry_of[part.slot]) entries[*entry].ranges.push_back(part.range);
    }
  }
  sink.begin(entries);

  for (const StateRegion& region : widest_first(table)) {
    if (region.has_parts()) {
      for (const StatePart& part : slices_.in_atom(region)) {
        const auto entry = entry_of[part.slot];
        if (entry.has_value()) sink.write(*entry, part.range.begin, part.values.cpu());
      }
      continue;
    }
    for (size_t i = 0; is_first && i < region.slots; ++i) {
      const size_t slot = region.first_slot + i;
      const StateEntry& form = table.slots()[slot].form;
      if (!entry_of[slot].has_value() || form.numel() == 0) continue;
      sink.write(*entry_of[slot], 0,
                 region.source == Source::kReplica
                     ? copy_in_order(table.replicas()[region.index], form).cpu()
                     : tensor_of(contents.numbers[i]));
    }
  }
}

// --- Loading ---

void StreamedState::load(StateSource& source, EngineCounters& counters,
                         const PartialState& partial) {
  StateContents contents = agree_to_load(counters, partial);
  load(
      "read_state", contents, source, [](const StateRegion& /*region*/) {}, counters);
}

void StreamedState::load(const char* call, StateContents& contents, StateSource& source,
                         const Fetch& fetch, EngineCounters& counters) {
  const at::NoGradGuard no_grad;
  const StateTable& table = contents.table;
  std::vector<StateNumber>& numbers = contents.numbers;
  Reading reading(table, source);
  // Until anything is changed, an error of one rank's source makes all ranks refuse the state.
  const auto refuse = [&](const std::string& problem) {
    refuse_on_all_ranks(group_,
                        problem.empty()
                            ? ""
                            : absl::StrCat(call,
                                           ": got a state that does not fit this run "
                                           "or cannot be read; nothing was changed:\n  ",
                                           problem),
                        "state");
  };
  std::vector<StateSlices::Presence> presence;
  refuse(problem_in([&] {
    presence = reading.presence();
    return problem_of(source, table, slices_, reading);
  }));

  const StateRegion& last = table.regions().back();
  fetch(last);
  std::vector<std::string> problems;
  problems.push_back(problem_in([&] {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (!reading.has(last.first_slot + i)) continue;
      const at::Tensor value = reading.whole(last.first_slot + i);
      std::memcpy(&numbers[i].bits, value.const_data_ptr(), sizeof(numbers[i].bits));
    }
    return absl::StrJoin(problems_of(numbers, slices_.optimizer()), "; ");
  }));
  // Check tensors that this process may not write: a state with other values is refused.
  const ReadOnlyMemory read_only;
  const std::vector<bool> is_read_only =
      table.replicas().empty() ? std::vector<bool>()
                               : read_only_on_any_rank(group_, table.replicas(), read_only,
                                                       "state: memory that is only read");
  for (const StateRegion& region : table.regions()) {
    if (region.source != Source::kReplica || !is_read_only[region.index]) continue;
    if (!reading.has(region.first_slot)) continue;
    fetch(region);
    problems.push_back(problem_in([&] {
      if (!read_only.holds(table.replicas()[region.index])) return std::string();
      const std::string problem =
          read_only.problem(table.replicas()[region.index], reading.whole(region.first_slot));
      const std::string& name = table.slots()[region.first_slot].name;
      return problem.empty() ? "" : absl::StrCat("'", name, "' ", problem);
    }));
  }
  std::erase(problems, "");
  refuse(absl::StrJoin(problems, "\n  "));

  for (const StateRegion& region : table.regions()) {
    if (region.source == Source::kNumbers || !reading.has_any(region)) continue;
    fetch(region);
    if (region.has_parts()) {
      for (const StatePart& part : slices_.kept(region)) {
        if (reading.has(part.slot)) reading.read(part.slot, part.range, part.values);
      }
    } else {
      const at::Tensor& replica = table.replicas()[region.index];
      if (replica.numel() == 0 || read_only.holds(replica)) continue;  // checked above
      replica.copy_(reading.whole(region.first_slot));
    }
  }
  slices_.begin_missing(table, presence, numbers);
  write_numbers(numbers, slices_.parameters(), slices_.optimizer(), counters);
}

}  // namespace tessera::internal
