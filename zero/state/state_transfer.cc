#include "tessera/zero/state/state_transfer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/ddp/replica_sync.h"
#include "tessera/errors.h"
#include "tessera/zero/parameters/registration.h"
#include "tessera/zero/state/memory_order.h"

namespace tessera::internal {

namespace {

using Source = StateRegion::Source;

at::Tensor copy_on_host(const at::Tensor& values) {
  return values.device().is_cpu() ? values.clone() : values.cpu();
}

/// The slot's part of its region's `bytes`: [numel] in the slot's dtype.
at::Tensor part_of(const at::Tensor& bytes, const StateSlot& slot) {
  const auto element = static_cast<int64_t>(c10::elementSize(slot.form.dtype));
  return bytes.narrow(0, slot.begin_bytes, slot.form.numel() * element).view(slot.form.dtype);
}

/// Of a region of one slot, as the slot's tensor is.
at::Tensor values_of(const at::Tensor& bytes, const StateSlot& slot) {
  return part_of(bytes, slot).as_strided(slot.form.sizes, slot.form.strides);
}

/// Copies what `range` and the entry's pieces have in common to `to`, the first byte of the whole
/// entry. Of pieces that overlap the first counts, so it is written last.
void copy_range(const StateEntry& entry, Range range, char* to) {
  const auto element = static_cast<int64_t>(c10::elementSize(entry.dtype));
  for (auto piece = entry.pieces.rbegin(); piece != entry.pieces.rend(); ++piece) {
    const int64_t begin = std::max(range.begin, piece->begin);
    const int64_t end = std::min(range.end(), piece->begin + piece->values.numel());
    if (begin >= end) continue;
    const auto* from = static_cast<const char*>(piece->values.const_data_ptr());
    std::memcpy(to + begin * element, from + (begin - piece->begin) * element,
                static_cast<size_t>((end - begin) * element));
  }
}

StateEntry& entry_of(StateDict& state, const StateSlot& slot) {
  return state.entries.try_emplace(slot.name, slot.form).first->second;
}

void save_numbers(const StateTable& table, const std::vector<StateNumber>& numbers,
                  StateDict& state) {
  const StateRegion& region = table.regions().back();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const StateSlot& slot = table.slots()[region.first_slot + i];
    const at::Tensor value = at::empty({1}, slot.form.dtype);
    std::memcpy(value.mutable_data_ptr(), &numbers[i].bits, sizeof(int64_t));
    entry_of(state, slot).pieces.push_back({0, value});
  }
}

std::string_view to_string(StateScope scope) {
  switch (scope) {
    case StateScope::kEveryRank:
      return "every rank";
    case StateScope::kOneRank:
      return "one rank";
    case StateScope::kSharded:
      return "sharded";
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace

StateTransfer::StateTransfer(ProcessGroup& group, StateSlices& slices)
    : group_(group), slices_(slices) {
  TORCH_INTERNAL_ASSERT(group.size() == slices.slices().world_size() &&
                        group.rank() == slices.slices().rank());
}

// --- Saving ---

StateDict StateTransfer::save(StateScope scope, int rank, const EngineCounters& counters,
                              std::string problem) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> lines = {
      absl::StrCat("scope ", absl::string_view(to_string(scope).data(), to_string(scope).size())),
      absl::StrCat("rank ", rank)};
  for (std::string& line : lines_of(slices_.buffers())) lines.push_back(std::move(line));
  require_equal(group_, lines, "state_dict");
  if (rank < 0 || rank >= group_.size()) {
    throw ErrorOnAllRanks(absl::StrCat("[state] state_dict: got rank ", rank, ", expected 0 to ",
                                       group_.size() - 1, "; name a rank of the world"));
  }
  const std::vector<StateNumber> numbers = slices_.numbers(counters);
  if (problem.empty()) problem = slices_.problem();
  const StateTable table = table_on_all_ranks(group_, slices_, numbers, std::move(problem));

  const bool is_sharded = scope == StateScope::kSharded;
  const int receiver = is_sharded ? 0 : rank;  // of what every rank has
  const bool receives = scope == StateScope::kEveryRank || group_.rank() == receiver;
  StateDict state;
  for (const StateRegion& region : table.regions()) {
    if (region.has_parts()) {
      if (is_sharded) {
        save_atom(table, region, state);
      } else if (region.source == Source::kWhole) {
        save_whole(table, region, receives ? &state : nullptr);
      } else {
        save_unit(table, region, receives ? &state : nullptr);
      }
    } else if (region.source == Source::kReplica && (receives || !is_sharded)) {
      save_replica(table, region, scope, receives ? &state : nullptr);
    }
  }
  if (receives) save_numbers(table, numbers, state);
  return state;
}

/// Every element is in one rank's atom, whatever the rows of degrees repeat.
void StateTransfer::save_atom(const StateTable& table, const StateRegion& region, StateDict& state,
                              const Wants& wants) const {
  const auto is_wanted = [&](const StateSlot& slot) { return !wants || wants(region, slot); };
  for (const StatePart& part : slices_.in_atom(region)) {
    if (!is_wanted(table.slots()[part.slot])) continue;
    entry_of(state, table.slots()[part.slot])
        .pieces.push_back({part.range.begin, copy_on_host(part.values)});
  }
  if (group_.rank() != 0) return;
  for (size_t i = 0; i < region.slots; ++i) {
    const StateSlot& slot = table.slots()[region.first_slot + i];
    if (slot.form.numel() > 0 || !is_wanted(slot)) continue;
    entry_of(state, slot).pieces.push_back({0, at::empty({0}, slot.form.dtype)});
  }
}

StateDict StateTransfer::take(const Wants& wants, const EngineCounters& counters) const {
  const at::NoGradGuard no_grad;
  const std::vector<StateNumber> numbers = slices_.numbers(counters);
  const StateTable table = slices_.table(numbers);
  StateDict state;
  for (const StateRegion& region : table.regions()) {
    if (region.has_parts()) save_atom(table, region, state, wants);
  }
  if (group_.rank() == 0) {
    const StateRegion& region = table.regions().back();
    save_numbers(table, numbers, state);
    for (size_t i = 0; i < region.slots; ++i) {
      const StateSlot& slot = table.slots()[region.first_slot + i];
      if (!wants(region, slot)) state.entries.erase(slot.name);
    }
  }
  return state;
}

/// Takes part in gathering a unit's values; `state` is null on ranks that do not need them.
void StateTransfer::save_unit(const StateTable& table, const StateRegion& region,
                              StateDict* state) {
  const FlatLayout& layout = slices_.layout_of(region);
  const at::TensorOptions options =
      at::TensorOptions(table.slots()[region.first_slot].form.dtype).device(group_.device());
  const int64_t block = region.block_numel;
  const Range own_atom = slices_.slices().atom(layout);
  const at::Tensor own = at::zeros({own_atom.numel / block}, options);
  for (const StatePart& part : slices_.in_atom(region)) {
    const int64_t in_buffer =
        layout.parameter_range(region.position(part.slot)).begin / block + part.range.begin;
    own.narrow(0, in_buffer - own_atom.begin / block, part.range.numel).copy_(part.values);
  }
  at::Tensor gathered = at::empty({layout.numel() / block}, options);
  if (layout.numel() > 0) group_.all_gather(gathered, own, region.tag)->wait();
  if (state == nullptr) return;
  gathered = gathered.cpu();

  std::vector<at::Tensor> values;
  for (size_t i = 0; i < region.slots; ++i) {
    const StateSlot& slot = table.slots()[region.first_slot + i];
    values.push_back(at::empty({slot.form.numel()}, slot.form.dtype));
    entry_of(*state, slot).pieces.push_back({0, values.back()});
  }
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Range atom = SliceMap(slices_.slices().degrees(), group_.size(), rank).atom(layout);
    for (const Segment& segment : layout.segments(atom)) {
      const std::optional<size_t> slot = region.slot_of(segment.parameter);
      if (!slot.has_value()) continue;
      const int64_t from = (rank * atom.numel + segment.buffer_offset - atom.begin) / block;
      const int64_t numel = (segment.numel + block - 1) / block;
      values[*slot - region.first_slot]
          .narrow(0, segment.parameter_offset / block, numel)
          .copy_(gathered.narrow(0, from, numel));
    }
  }
}

/// From its owner to all.
void StateTransfer::save_whole(const StateTable& table, const StateRegion& region,
                               StateDict* state) {
  const StateSlot& slot = table.slots()[region.first_slot];
  const at::Tensor values =
      at::empty({slot.form.numel()}, at::TensorOptions(slot.form.dtype).device(group_.device()));
  for (const StatePart& part : slices_.in_atom(region)) values.copy_(part.values);
  if (values.numel() > 0) {
    group_.broadcast(values.view(at::kByte), slices_.owner(region), region.tag)->wait();
  }
  if (state != nullptr) entry_of(*state, slot).pieces.push_back({0, values.cpu()});
}

void StateTransfer::save_replica(const StateTable& table, const StateRegion& region,
                                 StateScope scope, StateDict* state) {
  const StateSlot& slot = table.slots()[region.first_slot];
  const at::Tensor values = copy_in_order(table.replicas()[region.index], slot.form);
  // Buffers differ between ranks, the state does not.
  if (scope != StateScope::kSharded && values.numel() > 0) {
    group_.broadcast(values.view(at::kByte), 0, region.tag)->wait();
  }
  if (state != nullptr) entry_of(*state, slot).pieces.push_back({0, values.cpu()});
}

// --- Loading ---

void StateTransfer::load(const StateDict& state, EngineCounters& counters,
                         const PartialState& partial) {
  std::vector<StateNumber> numbers = slices_.numbers(counters);
  const StateTable table = table_on_all_ranks(group_, slices_, numbers, partial);
  load_all(table, std::move(numbers), state, counters);
}

void StateTransfer::put_back(StateDict state, EngineCounters& counters) {
  std::vector<StateNumber> numbers = slices_.numbers(counters);
  StateTable table = table_on_all_ranks(group_, slices_, numbers, "");
  table.accept_lack([](const StateSlot&) { return true; });
  std::erase_if(state.entries,
                [&](const auto& entry) { return table.find(entry.first) == nullptr; });
  load_all(table, std::move(numbers), state, counters);
}

void StateTransfer::load_all(const StateTable& table, std::vector<StateNumber> numbers,
                             const StateDict& state, EngineCounters& counters) {
  const at::NoGradGuard no_grad;
  const StateClaims claims(group_, table, state);
  if (!claims.problems().empty()) {
    throw ErrorOnAllRanks(absl::StrCat(
        "[state] load_state_dict: got a state that does not fit this run, expected exactly the "
        "entries of engine->state_dict(); nothing was changed:\n  ",
        claims.problems()));
  }

  const at::Tensor words = assemble(table, table.regions().back(), state, claims).view(at::kLong);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!claims.has(table.regions().back().first_slot + i)) continue;
    numbers[i].bits = words.const_data_ptr<int64_t>()[i];
  }
  refuse_on_all_ranks(group_, absl::StrJoin(slices_.problems_of(numbers), "; "), "state");
  const ReadOnlyMemory read_only;
  refuse_on_all_ranks(group_, unwritable(table, state, claims, read_only), "state");

  for (const StateRegion& region : table.regions()) {
    if (region.source == Source::kNumbers || region.bytes == 0) continue;
    bool is_there = false;
    for (size_t i = 0; i < region.slots; ++i) {
      is_there = is_there || claims.has(region.first_slot + i);
    }
    if (!is_there) continue;
    write(table, region, assemble(table, region, state, claims), claims, read_only);
  }
  using Presence = StateSlices::Presence;
  std::vector<Presence> presence;
  for (size_t slot = 0; slot < table.slots().size(); ++slot) {
    presence.push_back(claims.has(slot) ? Presence::kThere : Presence::kMissing);
  }
  slices_.begin_missing(table, presence, numbers);
  slices_.write(numbers, counters);
}

/// Which tensors lie in memory that this process may not write and would take other values, a line
/// each; "" if none. Collective.
std::string StateTransfer::unwritable(const StateTable& table, const StateDict& state,
                                      const StateClaims& claims, const ReadOnlyMemory& read_only) {
  if (table.replicas().empty()) return "";
  const std::vector<bool> is_read_only =
      read_only_on_any_rank(group_, table.replicas(), read_only, "state: memory that is only read");

  std::vector<std::string> lines;
  for (const StateRegion& region : table.regions()) {
    if (region.source != Source::kReplica || !claims.has(region.first_slot)) continue;
    if (!is_read_only[region.index]) continue;
    const StateSlot& slot = table.slots()[region.first_slot];
    const at::Tensor bytes = assemble(table, region, state, claims);
    const std::string problem =
        read_only.problem(table.replicas()[region.index], values_of(bytes, slot));
    if (!problem.empty()) lines.push_back(absl::StrCat("'", slot.name, "' ", problem));
  }
  return lines.empty() ? ""
                       : absl::StrCat("nothing was changed:\n  ", absl::StrJoin(lines, "\n  "));
}

/// The region's bytes, the same on every rank, in the order of its slots; zero between them.
at::Tensor StateTransfer::assemble(const StateTable& table, const StateRegion& region,
                                   const StateDict& state, const StateClaims& claims) {
  at::Tensor bytes = at::zeros({region.bytes}, at::kByte);
  auto* const data = static_cast<char*>(bytes.mutable_data_ptr());
  const size_t end = region.first_slot + region.slots;
  for (size_t i = region.first_slot; i < end; ++i) {
    if (claims.own(i).empty()) continue;
    const StateSlot& slot = table.slots()[i];
    const StateEntry& entry = state.entries.at(slot.name);
    for (const Range& run : claims.own(i)) copy_range(entry, run, data + slot.begin_bytes);
  }
  // One rank has each element, the others zeros: adding integers puts the bits together, whatever
  // they mean and also where two ranks share a word.
  if (region.bytes > 0) {
    const at::Tensor words = bytes.view(at::kLong).to(group_.device());
    group_.all_reduce(words, ReduceOp::kSum, region.tag)->wait();
    bytes = words.cpu().view(at::kByte);
  }
  for (size_t i = region.first_slot; i < end; ++i) {
    const StateSlot& slot = table.slots()[i];
    if (slot.form.numel() > 0 && claims.has(i) && claims.strides(i) != slot.form.strides) {
      part_of(bytes, slot).copy_(reordered(part_of(bytes, slot), slot.form, claims.strides(i)));
    }
  }
  return bytes;
}

void StateTransfer::write(const StateTable& table, const StateRegion& region,
                          const at::Tensor& bytes, const StateClaims& claims,
                          const ReadOnlyMemory& read_only) const {
  if (region.source == Source::kReplica) {
    const at::Tensor& replica = table.replicas()[region.index];
    if (read_only.holds(replica)) return;  // unwritable() has found it equal
    replica.copy_(values_of(bytes, table.slots()[region.first_slot]));
    return;
  }
  for (const StatePart& part : slices_.kept(region)) {
    if (!claims.has(part.slot)) continue;
    part.values.copy_(
        part_of(bytes, table.slots()[part.slot]).narrow(0, part.range.begin, part.range.numel));
  }
}

}  // namespace tessera::internal
