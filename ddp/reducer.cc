#include "tessera/ddp/reducer.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

namespace tessera {

// Note [Rounds]
// A parameter may receive several gradients within one backward: a module that is used twice
// through re-entrant checkpointing fires its hook once per use. The n-th firing belongs to round n.
// Rounds land in buffers of their own and are reduced and added one after the other, under every
// strategy: adding on the rank first where a buffer happens to be free, and after the reduction
// elsewhere, would round differently. How many rounds a unit has may differ between ranks that take
// different branches, so ranks agree on the maximum at the end of the backward.
//
// Note [Agreed order]
// Units are launched strictly in the plan's order, whatever order their gradients come in, so that
// ranks whose backwards run in different orders post the same sequence of collectives. Rounds after
// the first follow after the agreement, by round and unit.

namespace {

constexpr size_t kBitsPerWord = 64;

int64_t ballot_words(const UnitPlan& plan, const ParameterTable& table) {
  return static_cast<int64_t>(1 + plan.size() + (table.size() + kBitsPerWord - 1) / kBitsPerWord);
}

}  // namespace

Reducer::Reducer(ProcessGroup& group, const ParameterTable& table, const UnitPlan& plan,
                 Degrees degrees, SlabPool::OnRelease on_release, MemoryMeter& meter,
                 RollingHash& history)
    : group_(group),
      table_(table),
      plan_(plan),
      history_(history),
      meter_(meter),
      pool_([&group](int64_t numel, at::ScalarType dtype) { return group.allocate(numel, dtype); },
            meter, on_release),
      landings_(plan.size()),
      dedicated_(plan.size()),
      firings_(table.size()),
      rounds_(plan.size()),
      local_(table.size()),
      used_(table.size()),
      non_finite_(table.size()),
      ballot_(group, ballot_words(plan, table)) {
  reduced_.reserve(plan.size());
  for (size_t unit = 0; unit < plan.size(); ++unit) {
    const FlatLayout& layout = plan[unit].layout;
    pool_.reserve(layout.dtype(), layout.numel());
    reduced_.emplace_back(group, layout, degrees, meter);
    if (reduced_.back().stays_in_landing()) {
      dedicated_[unit] = group.allocate(layout.numel(), layout.dtype());
      meter.add(MemoryClass::kLanding, layout.bytes());
    }
    tags_.push_back(plan[unit].name);
  }
  meter.add(MemoryClass::kControl, ballot_.bytes());
}

Reducer::~Reducer() {
  for (const at::Tensor& buffer : dedicated_) {
    if (buffer.defined())
      meter_.remove(MemoryClass::kLanding, static_cast<int64_t>(buffer.nbytes()));
  }
  meter_.remove(MemoryClass::kControl, ballot_.bytes());
}

void Reducer::begin_micro_step(Mode mode) {
  mode_ = mode;
  next_launch_ = 0;
  std::fill(firings_.begin(), firings_.end(), 0);
  std::fill(rounds_.begin(), rounds_.end(), 1);
  for (auto& rounds : landings_) {
    if (!rounds.empty() && rounds[0]->is_open()) rounds[0]->begin_micro_step();
  }
}

Landing& Reducer::open_landing(size_t unit, size_t round) {
  auto& rounds = landings_[unit];
  while (rounds.size() <= round) rounds.push_back(std::make_unique<Landing>(table_, plan_[unit]));
  Landing& landing = *rounds[round];
  if (landing.is_open()) return landing;
  if (round == 0 && dedicated_[unit].defined()) {
    reduced_[unit].vacate();
    landing.open(dedicated_[unit]);
  } else {
    const FlatLayout& layout = plan_[unit].layout;
    landing.open(pool_.acquire(layout.dtype(), layout.numel()));
  }
  return landing;
}

void Reducer::close_landing(size_t unit, size_t round) {
  Landing& landing = *landings_[unit][round];
  if (!landing.is_open()) return;
  const at::Tensor buffer = landing.close();
  const bool is_dedicated = round == 0 && dedicated_[unit].defined();
  if (!is_dedicated) pool_.release(buffer);
}

void Reducer::land(size_t index, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const UnitPlan::Place place = plan_.place(index);
  // Without reduction all firings add up on this rank, in the order of the backward.
  const size_t round = mode_ == Mode::kReduce ? firings_[index]++ : 0;
  rounds_[place.unit] = std::max(rounds_[place.unit], round + 1);

  Landing& landing = open_landing(place.unit, round);
  non_finite_[index] = std::max(non_finite_[index], landing.land(place.position, gradient));
  local_[index] = 1;
  if (mode_ == Mode::kReduce && round == 0 && landing.is_complete()) launch_complete_units();
}

void Reducer::launch_complete_units() {
  while (next_launch_ < plan_.size()) {
    const auto& rounds = landings_[next_launch_];
    if (rounds.empty() || !rounds[0]->is_open() || !rounds[0]->is_complete()) break;
    launch(next_launch_++, 0);
  }
  retire_completed();
}

void Reducer::launch(size_t unit, size_t round) {
  Landing& landing = open_landing(unit, round);
  landing.fill_missing();
  history_.record(RollingHash::Event::kReduce, static_cast<int64_t>(unit));
  in_flight_.push_back({unit, round, reduced_[unit].reduce(landing.buffer(), tags_[unit])});
}

void Reducer::retire(const InFlight& reduction) {
  reduction.work->wait();
  reduced_[reduction.unit].add(landings_[reduction.unit][reduction.round]->buffer());
  close_landing(reduction.unit, reduction.round);
}

void Reducer::retire_completed() {
  while (!in_flight_.empty() && in_flight_.front().work->is_completed()) {
    retire(in_flight_.front());
    in_flight_.pop_front();
  }
}

void Reducer::retire_all() {
  for (; !in_flight_.empty(); in_flight_.pop_front()) retire(in_flight_.front());
}

/// Returns what is wrong, the same on every rank, or "".
std::string Reducer::agree() {
  const std::span<int64_t> mine = ballot_.mine();
  std::fill(mine.begin(), mine.end(), int64_t{0});
  mine[0] = history_.value();
  for (size_t unit = 0; unit < plan_.size(); ++unit) {
    mine[1 + unit] = static_cast<int64_t>(rounds_[unit]);
  }
  const size_t first_bits = 1 + plan_.size();
  for (size_t i = 0; i < table_.size(); ++i) {
    const auto bit = static_cast<int64_t>(uint64_t{local_[i]} << (i % kBitsPerWord));
    mine[first_bits + i / kBitsPerWord] |= bit;
  }

  ballot_.exchange("end of backward");

  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::span<const int64_t> paper = ballot_.of(rank);
    if (paper[0] != ballot_.of(0)[0]) {
      return absl::StrCat("[grad] rank ", rank,
                          " and rank 0 differ in what they reduced or dropped before the end of "
                          "this backward; call backward, no_sync and zero_grad alike on all ranks; "
                          "engine->zero_grad() on all ranks lets training go on");
    }
    for (size_t unit = 0; unit < plan_.size(); ++unit) {
      rounds_[unit] = std::max(rounds_[unit], static_cast<size_t>(paper[1 + unit]));
    }
    for (size_t i = 0; i < table_.size(); ++i) {
      const auto bits = static_cast<uint64_t>(paper[first_bits + i / kBitsPerWord]);
      used_[i] |= static_cast<uint8_t>((bits >> (i % kBitsPerWord)) & 1);
    }
  }
  return "";
}

void Reducer::end_micro_step() {
  if (mode_ == Mode::kAddLocally) {
    has_local_ = true;
    history_.record(RollingHash::Event::kNoSyncMicroStep, 0);
    return;
  }
  const at::NoGradGuard no_grad;
  while (next_launch_ < plan_.size()) {
    launch(next_launch_++, 0);
    retire_completed();
  }
  const std::string disagreement = agree();
  if (!disagreement.empty()) {
    // All ranks have posted the same collectives so far; they finish before anyone leaves.
    retire_all();
    TORCH_CHECK(false, disagreement);
  }
  const size_t rounds = rounds_.empty() ? 0 : *std::max_element(rounds_.begin(), rounds_.end());
  for (size_t round = 1; round < rounds; ++round) {
    for (size_t unit = 0; unit < plan_.size(); ++unit) {
      if (rounds_[unit] > round) launch(unit, round);
      retire_completed();
    }
  }
  retire_all();
  std::fill(local_.begin(), local_.end(), uint8_t{0});
  has_local_ = false;
  history_.record(RollingHash::Event::kMicroStep, 0);
}

void Reducer::clear() {
  for (size_t unit = 0; unit < plan_.size(); ++unit) {
    reduced_[unit].clear();
    for (size_t round = 0; round < landings_[unit].size(); ++round) close_landing(unit, round);
  }
  std::fill(local_.begin(), local_.end(), uint8_t{0});
  std::fill(used_.begin(), used_.end(), uint8_t{0});
  std::fill(non_finite_.begin(), non_finite_.end(), int64_t{0});
  has_local_ = false;
}

void Reducer::drop(size_t index) {
  const UnitPlan::Place place = plan_.place(index);
  reduced_[place.unit].drop(plan_[place.unit].layout.parameter_range(place.position));
  auto& rounds = landings_[place.unit];
  if (!rounds.empty() && rounds[0]->is_open()) rounds[0]->drop(place.position);
  local_[index] = 0;
  used_[index] = 0;
  non_finite_[index] = 0;
}

}  // namespace tessera
