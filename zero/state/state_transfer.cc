#include "tessera/zero/state/state_transfer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_cat.h>

#include "tessera/errors.h"
#include "tessera/zero/state/state_claims.h"

namespace tessera::internal {

namespace {

/// `bytes` are those of the region that contains `slot`. Returns the slot's part of them: [numel]
/// in the slot's dtype.
at::Tensor part_of(const at::Tensor& bytes, const StateSlot& slot) {
  const auto element = static_cast<int64_t>(c10::elementSize(slot.form.dtype));
  return bytes.narrow(0, slot.begin_bytes, slot.form.numel() * element).view(slot.form.dtype);
}

/// Copies the elements in `range` from those pieces of the entry that have them. `to` is the first
/// byte of the whole entry, not of `range`. Where pieces overlap, the values of the first piece
/// win, so pieces are written last to first.
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

/// On all ranks, or on `receiver` alone, returns the bytes of a region, in the order of its slots,
/// with the elements of all ranks. `own` has this rank's elements, which no other rank has, and
/// zeros elsewhere. So adding all ranks' bytes as integers combines the bits, also where two ranks'
/// elements lie in one word. Collective, blocking.
at::Tensor united(ProcessGroup& group, const StateRegion& region, at::Tensor own,
                  std::optional<int> receiver = std::nullopt) {
  if (region.bytes == 0) return own;
  const at::Tensor words = own.view(at::kLong).to(group.device());
  own.reset();  // frees the bytes on a GPU, where `words` is a copy
  const auto sum = receiver.has_value() ? group.reduce(words, ReduceOp::kSum, *receiver, region.tag)
                                        : group.all_reduce(words, ReduceOp::kSum, region.tag);
  sum->wait();
  return words.cpu().view(at::kByte);
}

/// Collects in a StateDict the values that it is given.
class StateDictSink final : public StateSink {
 public:
  /// `state` must outlive it. `takes_empty`: also takes entries without elements.
  StateDictSink(StateDict& state, bool takes_empty) : state_(state), takes_empty_(takes_empty) {}

  void begin(const std::vector<StateOutline>& outlines) override {
    for (const StateOutline& outline : outlines) {
      const bool is_empty = outline.form.numel() == 0;
      StateEntry* entry = nullptr;
      if (is_empty ? takes_empty_ : !outline.ranges.empty()) {
        entry = &state_.entries.try_emplace(outline.name, outline.form).first->second;
        if (is_empty) entry->pieces.push_back({0, at::empty({0}, entry->dtype)});
      }
      entries_.push_back(entry);
    }
  }
  void write(size_t entry, int64_t begin, const at::Tensor& values) override {
    entries_[entry]->pieces.push_back({begin, values.clone()});
  }

 private:
  StateDict& state_;
  const bool takes_empty_;
  std::vector<StateEntry*> entries_;  // per outline; null: nothing is written to it
};

/// The state that all ranks together have in memory. One region at a time can be read.
class RegionSource final : public StateSource {
 public:
  /// `table` must outlive it.
  RegionSource(const StateTable& table, const StateClaims& claims) : table_(table) {
    for (size_t i = 0; i < table.slots().size(); ++i) {
      if (!claims.has(i)) continue;
      const StateSlot& slot = table.slots()[i];
      entries_.emplace(slot.name, slot.form).first->second.strides = claims.strides(i);
    }
  }

  /// Sets the combined `bytes` of the region whose entries are read next.
  void show(at::Tensor bytes) { bytes_ = std::move(bytes); }

  const std::map<std::string, StateEntry>& entries() const override { return entries_; }
  std::string problem_of(const std::vector<StateOutline>& /*needed*/) override { return ""; }
  void read(const std::string& name, int64_t begin, const at::Tensor& to) override {
    const StateSlot& slot = table_.slots()[*table_.find(name)];
    to.copy_(part_of(bytes_, slot).narrow(0, begin, to.numel()));
  }

 private:
  const StateTable& table_;
  std::map<std::string, StateEntry> entries_;
  at::Tensor bytes_;
};

/// Texts for errors, indexed by StateScope.
constexpr std::array<const char*, 3> kScopes = {"every rank", "one rank", "sharded"};

bool is_scope(StateScope scope) { return static_cast<size_t>(scope) < kScopes.size(); }

std::string scope_text(StateScope scope) {
  const auto index = static_cast<size_t>(scope);
  return is_scope(scope) ? kScopes[index] : absl::StrCat(index);
}

}  // namespace

StateDict StateTransfer::save(StateScope scope, int rank, const EngineCounters& counters,
                              std::string problem) {
  const at::NoGradGuard no_grad;
  const StateContents contents = stream_.agree_to_save(
      "state_dict", counters, std::move(problem),
      {absl::StrCat("scope ", scope_text(scope)), absl::StrCat("rank ", rank)});
  if (!is_scope(scope)) {
    throw ErrorOnAllRanks(absl::StrCat("[state] state_dict: got scope ", scope_text(scope),
                                       ", expected kEveryRank, kOneRank or kSharded; name one"));
  }
  if (rank < 0 || rank >= group_.size()) {
    throw ErrorOnAllRanks(absl::StrCat("[state] state_dict: got rank ", rank, ", expected 0 to ",
                                       group_.size() - 1, "; name a rank of the world"));
  }
  StateDict own;
  StateDictSink sink(own, /*takes_empty=*/group_.rank() == 0);
  stream_.save(contents, sink);
  if (scope == StateScope::kSharded) return own;

  const auto receiver = scope == StateScope::kOneRank ? std::optional(rank) : std::nullopt;
  StateDict whole;
  for (const StateRegion& region : contents.table.regions()) {
    at::Tensor bytes = at::zeros({region.bytes}, at::kByte);
    for (size_t i = region.first_slot; i < region.first_slot + region.slots; ++i) {
      const StateSlot& slot = contents.table.slots()[i];
      const auto found = own.entries.find(slot.name);
      if (found == own.entries.end()) continue;
      copy_range(found->second, {0, slot.form.numel()},
                 static_cast<char*>(bytes.mutable_data_ptr()) + slot.begin_bytes);
      own.entries.erase(found);
    }
    bytes = united(group_, region, std::move(bytes), receiver);
    if (receiver.value_or(group_.rank()) != group_.rank()) continue;
    for (size_t i = region.first_slot; i < region.first_slot + region.slots; ++i) {
      const StateSlot& slot = contents.table.slots()[i];
      StateEntry& entry = whole.entries.emplace(slot.name, slot.form).first->second;
      entry.pieces.push_back({0, part_of(bytes, slot).clone()});
    }
  }
  return whole;
}

StateDict StateTransfer::take(const StreamedState::Wants& wants,
                              const EngineCounters& counters) const {
  StateDict state;
  StateDictSink sink(state, /*takes_empty=*/group_.rank() == 0);
  stream_.save(stream_.contents(counters), sink,
               [&](const StateRegion& region, const StateSlot& slot) {
                 return region.source != StateRegion::Source::kReplica && wants(region, slot);
               });
  return state;
}

void StateTransfer::load(const StateDict& state, EngineCounters& counters,
                         const PartialState& partial) {
  StateContents contents = stream_.agree_to_load(counters, partial);
  load(contents, state, counters);
}

void StateTransfer::put_back(StateDict state, EngineCounters& counters) {
  StateContents contents = stream_.agree_to_load(counters, {});
  contents.table.accept_lack([](const StateSlot&) { return true; });
  std::erase_if(state.entries,
                [&](const auto& entry) { return contents.table.find(entry.first) == nullptr; });
  load(contents, state, counters);
}

void StateTransfer::load(StateContents& contents, const StateDict& state,
                         EngineCounters& counters) {
  const StateTable& table = contents.table;
  const StateClaims claims(group_, table, state);
  if (!claims.problems().empty()) {
    throw ErrorOnAllRanks(absl::StrCat(
        "[state] load_state_dict: got a state that does not fit this run, expected exactly the "
        "entries of engine->state_dict(); nothing was changed:\n  ",
        claims.problems()));
  }
  RegionSource source(table, claims);
  const auto fetch = [&](const StateRegion& region) {
    source.show({});  // frees the bytes of the region shown before
    at::Tensor own = at::zeros({region.bytes}, at::kByte);
    for (size_t i = region.first_slot; i < region.first_slot + region.slots; ++i) {
      const StateSlot& slot = table.slots()[i];
      for (const Range& run : claims.own(i)) {
        copy_range(state.entries.at(slot.name), run,
                   static_cast<char*>(own.mutable_data_ptr()) + slot.begin_bytes);
      }
    }
    source.show(united(group_, region, std::move(own)));
  };
  stream_.load("load_state_dict", contents, source, fetch, counters);
}

}  // namespace tessera::internal
