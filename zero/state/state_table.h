#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm_hook.h"
#include "tessera/element_state.h"
#include "tessera/optim/slices/whole_tensors.h"
#include "tessera/parameter_table.h"
#include "tessera/state_dict.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/state/state_numbers.h"

namespace tessera::internal {

/// An entry that the state of a run has, and its place in its region.
struct StateSlot {
  std::string name;
  StateEntry form;  ///< sizes, strides, dtype; no pieces
  int64_t begin_bytes;
  bool may_lack = false;                 ///< a state without it can be loaded
  std::optional<size_t> parameter = {};  ///< index in the ParameterTable, if it has a parameter
  std::optional<size_t> group = {};      ///< StateNumber::group
  bool is_order_bound = false;           ///< ElementState::is_order_bound
};

/// Entries that are communicated together, as a row of bytes with zeros between the slots.
struct StateRegion {
  enum class Source : uint8_t {
    kParameters,  ///< of a unit
    kMasters,     ///< of a unit
    kOptimizer,   ///< one tensor of the optimizer for a unit
    kAverage,     ///< the average of a unit's weights
    kReplica,  ///< a tensor that every rank has: a buffer, a frozen parameter that was not moved, a
               ///< communication hook's state
    kWhole,    ///< a state that the owner of a parameter keeps whole
    kNumbers,  ///< all numbers, 8 bytes each
  };
  Source source;
  /// Number of the unit, or index in StateTable::replicas() or WholeTensors::states().
  size_t index;
  size_t state;       ///< under kOptimizer: index in FlatOptimizer::states()
  size_t first_slot;  ///< a unit's slots are in the order of parameters in its buffer
  size_t slots;
  /// For a unit's region: for each slot, the position of its parameter in the unit, ascending. Some
  /// states of the optimizer exist only for some of the unit's parameters.
  std::vector<size_t> positions;
  int64_t block_numel;  ///< under kOptimizer: ElementState::block_numel; else 1
  /// Size of the region, a multiple of 8. A unit's region has room for its whole buffer, even if
  /// some parameters have no slot.
  int64_t bytes;
  std::string tag;  ///< name of its collectives

  bool is_of_unit() const { return source < Source::kReplica; }
  /// Returns true if ranks keep parts of it: StateSlices::kept().
  bool has_parts() const { return is_of_unit() || source == Source::kWhole; }
  /// Returns the slot of the unit's parameter number `position`; nothing if it has none.
  std::optional<size_t> slot_of(size_t position) const {
    const auto found = std::lower_bound(positions.begin(), positions.end(), position);
    if (found == positions.end() || *found != position) return std::nullopt;
    return first_slot + static_cast<size_t>(found - positions.begin());
  }
  /// Returns the position in the unit of the parameter that has slot `slot`: the inverse of
  /// slot_of().
  size_t position(size_t slot) const { return positions[slot - first_slot]; }
};

/// All entries of a run's state in a fixed order, the same on all ranks. Pure arithmetic.
class StateTable {
 public:
  /// A buffer that is registered under several names has one entry, under the first name. Throws
  /// c10::Error that names a parameter whose size has changed.
  StateTable(const ParameterTable& table, const UnitPlan& plan,
             const std::vector<NamedTensor>& buffers, const std::vector<KeptState>& states,
             const std::vector<StateNumber>& numbers, bool has_average = false,
             const std::vector<CommHook::State>& hook_state = {},
             const std::vector<WholeTensors::State>& wholes = {});

  const std::vector<StateSlot>& slots() const { return slots_; }
  const std::vector<StateRegion>& regions() const { return regions_; }
  /// Returns the tensors to which StateRegion::index refers under kReplica.
  const std::vector<at::Tensor>& replicas() const { return replicas_; }

  /// Returns a pointer to the index in slots() of the slot called `name`; null if there is none.
  const size_t* find(const std::string& name) const;

  /// From now on a state may lack the slots that `accepts` selects.
  void accept_lack(const std::function<bool(const StateSlot& slot)>& accepts);
  /// From now on is_left_out() is true for optimizer states of frozen parameters.
  void leave_out_frozen() { leaves_out_frozen_ = true; }
  /// From now on is_left_out() is also true for entries of a communication hook.
  void leave_out_comm_hook() { leaves_out_comm_hook_ = true; }

  /// `name` is an entry of a state that is not a slot. Returns true if it is to be ignored. If not,
  /// the entry is an error, and unknown_entry() returns a line with the problem and the remedy.
  bool is_left_out(const std::string& name) const {
    return (leaves_out_frozen_ && is_of_frozen(name)) ||
           (leaves_out_comm_hook_ && is_of_comm_hook(name));
  }
  std::string unknown_entry(const std::string& name) const;
  /// Returns true if the entry `name` is a communication hook's.
  static bool is_of_comm_hook(const std::string& name) { return name.starts_with("comm_hook."); }

 private:
  bool is_of_frozen(const std::string& name) const;
  void add_unit(const ParameterTable& table, const PlannedUnit& unit, StateRegion region,
                std::string_view prefix, std::string_view suffix, at::ScalarType dtype,
                const KeptState* state = nullptr);
  void add_replica(std::string name, const at::Tensor& tensor,
                   std::optional<size_t> parameter = {});
  void add_whole(const Parameter& parameter, const WholeTensors::State& state, size_t index,
                 at::ScalarType masters);
  void add_slot(StateSlot slot);

  std::vector<StateSlot> slots_;
  std::vector<StateRegion> regions_;
  std::vector<at::Tensor> replicas_;
  std::map<std::string, size_t> slot_of_;
  std::set<std::string> frozen_;  // names of frozen parameters
  bool leaves_out_frozen_ = false;
  bool leaves_out_comm_hook_ = false;
};

}  // namespace tessera::internal
