#include "tessera/zero/step/whole_tensor_exchange.h"

#include <algorithm>
#include <utility>

#include "tessera/core/access/unobserved_scope.h"
#include "tessera/core/memory/private_memory.h"
#include "tessera/core/sched/trace_span.h"

namespace tessera::internal {

// Note [Exchange of directions]
// update() leaves the direction of each piece in this rank's memory_. Then
//   1. barrier: all directions are there;
//   2. an owner reads the pieces of its parameters into its results, one parameter after the other,
//      and transforms them in place;
//   3. barrier: all results are there;
//   4. each rank reads its pieces of the results over its own directions.
// Two barriers are enough. Directions are written again in 4 and in the next update(). Both come
// after 3, which an owner enters when it has read all it needs. Results are written again in 2 of
// the next step. That comes after 1 of the next step, which a rank enters when it has finished 4 of
// this step. Only parameters that some rank has used take part, and all ranks know which these are.
//
// If needs_values() is true for a parameter, its directions are its gradients, and memory_ also has
// its values. The owner reads the values into its results and the gradients into scratch memory,
// and then updates the values.
//
// If a parameter needs norms only, its directions stay on their ranks. Before 1 the ranks
// all-gather the exact sums of squares of their pieces.
//
// Where ranks cannot read each other's memory, 1 is an all-gather of all directions and 3 one of
// all results, so every rank receives everything. Each rank's part is padded to the length of the
// largest part.

namespace {

std::vector<WholeTensorPlan::Parameter> parameters_of(const WholeTensors& whole) {
  std::vector<WholeTensorPlan::Parameter> parameters;
  std::vector<WholeTensors::State>::const_iterator state = whole.states().begin();
  for (const size_t parameter : whole.parameters()) {
    parameters.push_back({.parameter = parameter,
                          .cost = whole.cost(parameter),
                          .scratch_numel = whole.scratch_numel(parameter),
                          .travels = !whole.needs_norms(parameter),
                          .has_values = whole.needs_values(parameter)});
    for (; state != whole.states().end() && state->parameter == parameter; ++state) {
      parameters.back().states.push_back(state->form);
    }
  }
  return parameters;
}

constexpr size_t kWordsOfSquares = 2 * ExactSum::kWords;

const std::vector<SliceMap::Axis> kSharers = {
    SliceMap::Axis::kParameters, SliceMap::Axis::kGradients, SliceMap::Axis::kOptimizer};

}  // namespace

std::unique_ptr<WholeTensorExchange> WholeTensorExchange::make(
    ProcessGroup& group, const UnitPlan& plan, const SliceMap& slices,
    const ResolvedOptions& options, const ParameterTable& table, CpuOptimizer& optimizer,
    MemoryMeter& meter, Trace* trace) {
  WholeTensors* const whole = optimizer.whole_tensors();
  if (whole == nullptr) return nullptr;
  const std::vector<int> sharers = slices.peers(kSharers);
  std::vector<int> slice_of_rank;
  for (const int rank : sharers) {
    slice_of_rank.push_back(SliceMap(slices.degrees(), group.size(), rank).optimizer_slice());
  }
  const auto own = std::find(sharers.begin(), sharers.end(), group.rank()) - sharers.begin();
  return std::unique_ptr<WholeTensorExchange>(
      new WholeTensorExchange(group, WholeTensorPlan(plan, parameters_of(*whole), slice_of_rank),
                              static_cast<int>(own), slices, options, table, *whole, meter, trace));
}

WholeTensorExchange::WholeTensorExchange(ProcessGroup& group, WholeTensorPlan plan, int rank,
                                         const SliceMap& slices, const ResolvedOptions& options,
                                         const ParameterTable& table, WholeTensors& whole,
                                         MemoryMeter& meter, Trace* trace)
    : plan_(std::move(plan)),
      rank_(rank),
      table_(table),
      whole_(whole),
      meter_(meter),
      trace_(trace),
      class_(options.offload == Offload::kNone ? MemoryClass::kOptimizer : MemoryClass::kHost) {
  whole_.reserve(plan_.scratch_bytes(rank_), plan_.whole_bytes());
  bytes_ = whole_.bytes();
  keep_states();
  if (plan_.ranks() > 1) {
    if (plan_.ranks() < group.size()) {
      owned_group_ = split(group, slices.colors(kSharers), "directions");
    }
    group_ = owned_group_ != nullptr ? owned_group_.get() : &group;
    place_directions();
    bytes_ += static_cast<int64_t>(memory_.nbytes());
  }
  meter_.add(class_, bytes_);
}

WholeTensorExchange::~WholeTensorExchange() {
  meter_.remove(class_, bytes_);
  if (gathered_.defined()) {
    meter_.remove(MemoryClass::kOptimizer, static_cast<int64_t>(gathered_.nbytes()));
  }
}

/// Allocates the states of the parameters that this rank owns, and tells `whole_` the owner of
/// every state.
void WholeTensorExchange::keep_states() {
  if (whole_.states().empty()) return;
  if (const int64_t bytes = plan_.state_bytes(rank_); bytes > 0) {
    states_ = allocate_private(bytes, at::kByte).zero_();
    bytes_ += bytes;
  }
  size_t next = 0;
  for (const WholeTensorPlan::Entry& entry : plan_.entries()) {
    for (const int64_t begin : entry.states) {
      const WholeState& state = whole_.states()[next].form;
      at::Tensor memory;
      if (entry.owner == rank_) {
        memory =
            states_.narrow(0, begin, state.bytes(entry.dtype)).view(state.dtype_over(entry.dtype));
      }
      whole_.keep(next++, entry.owner, memory);
    }
  }
}

void WholeTensorExchange::place_directions() {
  const int64_t bytes = plan_.results_begin() + plan_.results_bytes();
  for (const WholeTensorPlan::Entry& entry : plan_.entries()) {
    if (!entry.travels) scaled_.push_back(&entry);
  }
  if (!scaled_.empty()) {
    squares_.emplace(*group_, static_cast<int64_t>(scaled_.size() * kWordsOfSquares));
  }
  if (plan_.travelling_bytes() == 0) {
    memory_ = allocate_private(bytes, at::kByte);
  } else if (group_->can().one_sided_reads) {
    memory_ = group_->allocate(bytes, at::kByte);
    window_ = group_->make_window(memory_, "directions");
  } else {
    memory_ = allocate_private(bytes, at::kByte);
    gathered_ = group_->allocate(plan_.gathered_bytes(), at::kByte);
    meter_.add(MemoryClass::kOptimizer, static_cast<int64_t>(gathered_.nbytes()));
  }
  for (const WholeTensorPlan::Entry& entry : plan_.entries()) {
    if (awaited_units_.empty() || !is_awaited(entry.unit)) awaited_units_.push_back(entry.unit);
    for (const WholeTensorPlan::Piece& piece : entry.pieces) {
      if (piece.rank != rank_) continue;
      whole_.place(entry.unit, piece.segment, direction_of(entry, piece));
      if (!entry.has_values) continue;
      whole_.place_values(entry.unit, piece.segment, values_of(entry, piece));
    }
  }
  std::sort(awaited_units_.begin(), awaited_units_.end());
}

bool WholeTensorExchange::is_awaited(size_t unit) const {
  return std::find(awaited_units_.begin(), awaited_units_.end(), unit) != awaited_units_.end();
}

at::Tensor WholeTensorExchange::part_of_memory(int64_t begin_bytes, int64_t numel,
                                               at::ScalarType dtype) const {
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  return memory_.narrow(0, begin_bytes, bytes).view(dtype);
}

at::Tensor WholeTensorExchange::direction_of(const WholeTensorPlan::Entry& entry,
                                             const WholeTensorPlan::Piece& piece) const {
  return part_of_memory(piece.direction, piece.range.numel, entry.dtype);
}

at::Tensor WholeTensorExchange::values_of(const WholeTensorPlan::Entry& entry,
                                          const WholeTensorPlan::Piece& piece) const {
  return part_of_memory(piece.values, piece.range.numel, entry.dtype);
}

at::Tensor WholeTensorExchange::result_of(const WholeTensorPlan::Entry& entry) const {
  return part_of_memory(plan_.results_begin() + entry.result, entry.numel, entry.dtype);
}

void WholeTensorExchange::run(const std::vector<uint8_t>& used) {
  if (group_ == nullptr) return;
  const UnobservedScope unobserved;
  const auto is_used = [&used](const WholeTensorPlan::Entry& entry) {
    return used[entry.parameter] != 0;
  };
  const auto travels = [&is_used](const WholeTensorPlan::Entry& entry) {
    return entry.travels && is_used(entry);
  };
  const std::vector<WholeTensorPlan::Entry>& entries = plan_.entries();
  const auto needs_norms = [&is_used](const WholeTensorPlan::Entry* entry) {
    return is_used(*entry);
  };
  if (std::any_of(scaled_.begin(), scaled_.end(), needs_norms)) exchange_squares(used);
  if (std::none_of(entries.begin(), entries.end(), travels)) return;
  publish({0, plan_.travelling_bytes()}, "directions");
  for (const WholeTensorPlan::Entry& entry : entries) {
    if (entry.owner == rank_ && travels(entry)) transform(entry);
  }
  publish({plan_.results_begin(), plan_.results_bytes()}, "results of directions");
  ReadBatch reads;
  for (const WholeTensorPlan::Entry& entry : entries) {
    if (travels(entry)) take_results(entry, reads);
  }
  reads.wait();
}

/// Adds up exact sums of all ranks' pieces, so that each rank has the same norms to the bit.
void WholeTensorExchange::exchange_squares(const std::vector<uint8_t>& used) {
  constexpr size_t kWords = ExactSum::kWords;
  for (size_t i = 0; i < scaled_.size(); ++i) {
    WholeTensors::Squares own;
    for (const WholeTensorPlan::Piece& piece : scaled_[i]->pieces) {
      if (piece.rank != rank_ || used[scaled_[i]->parameter] == 0) continue;
      whole_.add_squares_of(scaled_[i]->unit, piece.segment, own);
    }
    const std::span<int64_t> words = squares_->mine().subspan(i * kWordsOfSquares, kWordsOfSquares);
    own.of_values.store(words.first<kWords>());
    own.of_direction.store(words.last<kWords>());
  }
  squares_->exchange("squares of parameters");
  for (size_t i = 0; i < scaled_.size(); ++i) {
    if (used[scaled_[i]->parameter] == 0) continue;
    WholeTensors::Squares all;
    for (int rank = 0; rank < plan_.ranks(); ++rank) {
      const std::span<const int64_t> words =
          squares_->of(rank).subspan(i * kWordsOfSquares, kWordsOfSquares);
      all.of_values.merge(ExactSum::load(words.first<kWords>()));
      all.of_direction.merge(ExactSum::load(words.last<kWords>()));
    }
    whole_.set_norms(scaled_[i]->parameter, all);
  }
}

void WholeTensorExchange::transform(const WholeTensorPlan::Entry& entry) {
  const std::string& name = table_[entry.parameter].name;
  const TraceSpan span(trace_, TraceTrack::kOptimizer, name);
  const at::Tensor result = result_of(entry);
  const at::Tensor direction = entry.has_values ? whole_.scratch(entry.numel, entry.dtype) : result;
  ReadBatch reads;
  for (const WholeTensorPlan::Piece& piece : entry.pieces) {
    const auto part_of = [&piece](const at::Tensor& whole) {
      return whole.narrow(0, piece.range.begin, piece.range.numel);
    };
    fetch(piece.rank, piece.direction, part_of(direction), name, reads);
    if (entry.has_values) fetch(piece.rank, piece.values, part_of(result), name, reads);
  }
  reads.wait();
  if (entry.has_values) {
    whole_.update(entry.parameter, result, direction);
  } else {
    whole_.transform(entry.parameter, result);
  }
}

void WholeTensorExchange::take_results(const WholeTensorPlan::Entry& entry, ReadBatch& reads) {
  for (const WholeTensorPlan::Piece& piece : entry.pieces) {
    if (piece.rank != rank_) continue;
    fetch(entry.owner, plan_.results_begin() + entry.result + entry.bytes(piece.range.begin),
          direction_of(entry, piece), table_[entry.parameter].name, reads);
  }
}

/// Makes `bytes` of each rank's memory_ readable by fetch() on all ranks. Makes all ranks wait for
/// each other.
void WholeTensorExchange::publish(Range bytes, std::string_view tag) {
  if (window_ != nullptr) return group_->barrier(tag);
  published_ = bytes;
  const at::Tensor all = gathered_.narrow(0, 0, bytes.numel * plan_.ranks());
  const at::Tensor own = all.narrow(0, bytes.numel * rank_, bytes.numel);
  own.copy_(memory_.narrow(0, bytes.begin, bytes.numel));
  group_->all_gather(all, own, tag)->wait();
}

/// Copies from rank `from`'s memory_, from offset `begin_bytes` on, into `to`. A read through the
/// window is only started, and added to `reads`; any other copy is done at once.
void WholeTensorExchange::fetch(int from, int64_t begin_bytes, const at::Tensor& to,
                                std::string_view tag, ReadBatch& reads) {
  const at::Tensor target = to.view(at::kByte);
  if (from == rank_) {
    target.copy_(memory_.narrow(0, begin_bytes, target.numel()));
  } else if (window_ != nullptr) {
    reads.add(window_->start_read(from, begin_bytes, target, tag));
  } else {
    const int64_t begin = published_.numel * from + begin_bytes - published_.begin;
    target.copy_(gathered_.narrow(0, begin, target.numel()));
  }
}

}  // namespace tessera::internal
