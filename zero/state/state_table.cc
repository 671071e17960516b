#include "tessera/zero/state/state_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/core/numbers/round_up.h"

namespace tessera::internal {

namespace {

constexpr int64_t kWordBytes = 8;

absl::string_view to_absl(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

StateTable::StateTable(const ParameterTable& table, const UnitPlan& plan,
                       const std::vector<NamedTensor>& buffers,
                       const std::vector<KeptState>& states,
                       const std::vector<StateNumber>& numbers, bool has_average,
                       const std::vector<CommHook::State>& hook_state,
                       const std::vector<WholeTensors::State>& wholes) {
  using Source = StateRegion::Source;
  for (size_t index = 0; index < plan.size(); ++index) {
    const PlannedUnit& unit = plan[index];
    const auto region = [index](Source source, size_t state = 0) {
      StateRegion region{};
      region.source = source;
      region.index = index;
      region.state = state;
      region.block_numel = 1;
      return region;
    };
    add_unit(table, unit, region(Source::kParameters), "model.", "", unit.precision.parameters);
    if (unit.kind == UnitKind::kFrozen) continue;
    if (unit.precision.has_masters()) {
      add_unit(table, unit, region(Source::kMasters), "optimizer.", ".master",
               unit.precision.master);
    }
    for (size_t state = 0; state < states.size(); ++state) {
      add_unit(table, unit, region(Source::kOptimizer, state), "optimizer.",
               absl::StrCat(".", states[state].name),
               states[state].dtype_over(unit.precision.master), &states[state]);
    }
    if (has_average) {
      add_unit(table, unit, region(Source::kAverage), "optimizer.", ".average",
               unit.precision.master);
    }
  }

  for (size_t i = 0; i < wholes.size(); ++i) {
    const PlannedUnit& unit = plan[plan.place(wholes[i].parameter).unit];
    add_whole(table[wholes[i].parameter], wholes[i], i, unit.precision.master);
  }
  for (size_t i = 0; i < table.size(); ++i) {
    if (plan.has_place(i)) continue;
    add_replica(absl::StrCat("model.", table[i].name), table[i].tensor, i);
  }
  for (const Parameter& parameter : table) {
    if (!parameter.is_trainable) frozen_.insert(parameter.name);
  }
  std::set<const c10::TensorImpl*> seen;
  for (const NamedTensor& buffer : buffers) {
    if (!seen.insert(buffer.tensor.unsafeGetTensorImpl()).second) continue;
    add_replica(absl::StrCat("model.", buffer.name), buffer.tensor);
  }
  for (const CommHook::State& state : hook_state) {
    const auto owner = std::find_if(table.begin(), table.end(), [&](const Parameter& parameter) {
      return parameter.name == state.parameter;
    });
    add_replica(state.name, state.tensor,
                owner == table.end() ? std::optional<size_t>() : owner - table.begin());
  }

  StateRegion region{};
  region.source = Source::kNumbers;
  region.first_slot = slots_.size();
  region.slots = numbers.size();
  region.bytes = static_cast<int64_t>(numbers.size()) * kWordBytes;
  region.tag = "state: numbers";
  for (size_t i = 0; i < numbers.size(); ++i) {
    add_slot({.name = numbers[i].name,
              .form = {.sizes = {}, .strides = {}, .dtype = numbers[i].dtype, .pieces = {}},
              .begin_bytes = static_cast<int64_t>(i) * kWordBytes,
              .may_lack = numbers[i].may_lack,
              .parameter = numbers[i].parameter,
              .group = numbers[i].group});
  }
  regions_.push_back(std::move(region));
}

void StateTable::add_unit(const ParameterTable& table, const PlannedUnit& unit, StateRegion region,
                          std::string_view prefix, std::string_view suffix, at::ScalarType dtype,
                          const KeptState* state) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  if (state != nullptr) region.block_numel = state->block_numel;
  const bool has_blocks = region.block_numel > 1;
  for (size_t position = 0; position < unit.parameters.size(); ++position) {
    if (state == nullptr || state->has(unit.parameters[position])) {
      region.positions.push_back(position);
    }
  }
  if (region.positions.empty()) return;
  region.first_slot = slots_.size();
  region.slots = region.positions.size();
  // One value for each block. The division is exact, because every part of a layout begins at a
  // block.
  region.bytes = round_up(unit.layout.numel() / region.block_numel * element, kWordBytes);
  region.tag = absl::StrCat("state: ", unit.name, to_absl(suffix));
  for (const size_t position : region.positions) {
    const Parameter& parameter = table[unit.parameters[position]];
    const Range range = unit.layout.parameter_range(position);
    TORCH_CHECK(parameter.tensor.numel() == range.numel, "parameter '", parameter.name, "': got ",
                parameter.tensor.numel(), " elements, expected the ", range.numel,
                " it had at parallelize; it was re-assigned or resized since");
    StateEntry form = {.sizes = parameter.tensor.sizes().vec(),
                       .strides = flat_strides(parameter.tensor),
                       .dtype = dtype,
                       .pieces = {}};
    if (has_blocks) {
      form.sizes = {state->values_of(range.numel)};
      form.strides = {1};
    }
    add_slot({.name = absl::StrCat(to_absl(prefix), parameter.name, to_absl(suffix)),
              .form = std::move(form),
              .begin_bytes = range.begin / region.block_numel * element,
              .parameter = unit.parameters[position],
              .is_order_bound = state != nullptr && state->is_order_bound});
  }
  regions_.push_back(std::move(region));
}

void StateTable::add_replica(std::string name, const at::Tensor& tensor,
                             std::optional<size_t> parameter) {
  StateRegion region{};
  region.source = StateRegion::Source::kReplica;
  region.index = replicas_.size();
  region.first_slot = slots_.size();
  region.slots = 1;
  region.bytes = round_up(static_cast<int64_t>(tensor.nbytes()), kWordBytes);
  region.tag = absl::StrCat("state: ", name);
  replicas_.push_back(tensor.detach());
  add_slot({.name = std::move(name),
            .form = {.sizes = tensor.sizes().vec(),
                     .strides = flat_strides(tensor),
                     .dtype = tensor.scalar_type(),
                     .pieces = {}},
            .begin_bytes = 0,
            .parameter = parameter});
  regions_.push_back(std::move(region));
}

void StateTable::add_whole(const Parameter& parameter, const WholeTensors::State& state,
                           size_t index, at::ScalarType masters) {
  StateRegion region{};
  region.source = StateRegion::Source::kWhole;
  region.index = index;
  region.first_slot = slots_.size();
  region.slots = 1;
  region.bytes = round_up(state.form.bytes(masters), kWordBytes);
  std::string name = absl::StrCat("optimizer.", parameter.name, ".", state.form.name);
  region.tag = absl::StrCat("state: ", name);
  add_slot({.name = std::move(name),
            .form = {.sizes = state.form.sizes,
                     .strides = state.form.strides(parameter.tensor),
                     .dtype = state.form.dtype_over(masters),
                     .pieces = {}},
            .begin_bytes = 0,
            .parameter = state.parameter});
  regions_.push_back(std::move(region));
}

void StateTable::add_slot(StateSlot slot) {
  const auto [place, is_new] = slot_of_.emplace(slot.name, slots_.size());
  TORCH_CHECK(is_new, "'", slot.name,
              "': got two values of this name, expected one; rename a parameter, a buffer or an "
              "optimizer group");
  slots_.push_back(std::move(slot));
}

const size_t* StateTable::find(const std::string& name) const {
  const auto found = slot_of_.find(name);
  return found == slot_of_.end() ? nullptr : &found->second;
}

void StateTable::accept_lack(const std::function<bool(const StateSlot&)>& accepts) {
  for (StateSlot& slot : slots_) slot.may_lack = slot.may_lack || accepts(slot);
}

bool StateTable::is_of_frozen(const std::string& name) const {
  const std::string_view prefix = "optimizer.";
  const size_t state = name.rfind('.');
  return name.starts_with(prefix) && state > prefix.size() && state != name.npos &&
         frozen_.contains(name.substr(prefix.size(), state - prefix.size()));
}

std::string StateTable::unknown_entry(const std::string& name) const {
  return absl::StrCat(internal::unknown_entry(name),
                      is_of_frozen(name)
                          ? "; the parameter is frozen: PartialState::leaves_out_frozen leaves its "
                            "state out"
                      : is_of_comm_hook(name)
                          ? "; it is a communication hook's: call register_comm_hook() as the run "
                            "that saved it, or leave it out by PartialState::leaves_out_comm_hook"
                          : "");
}

}  // namespace tessera::internal
