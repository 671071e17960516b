#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/read_only_memory.h"
#include "tessera/process_group.h"
#include "tessera/state_dict.h"
#include "tessera/zero/state/state_claims.h"
#include "tessera/zero/state/state_numbers.h"
#include "tessera/zero/state/state_slices.h"
#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// Moves the state of a run between all ranks' slices and named tensors in memory: what
/// Engine::state_dict and load_state_dict do. Holds no memory.
///
/// The caller sees to it that nothing is being all-gathered, gathered or reduced, and that no rank
/// reads parameters while load() runs.
class StateTransfer {
 public:
  /// `group` is as large as the slices' world. References must outlive it.
  StateTransfer(ProcessGroup& group, StateSlices& slices);

  /// Engine::state_dict(). Collective, blocking. Throws c10::Error on every rank where `scope` or
  /// `rank` differ or `rank` is none. Whole scopes receive (N-1)/N of the state on every rank and
  /// take temporary memory for the largest unit's parameters, masters or one of its optimizer
  /// states, whichever is largest, and for its atom; a state that only some parameters of a unit
  /// have counts in full. kSharded sends nothing but that check.
  /// `problem`: what this rank has against it, "" for nothing; every rank throws a c10::Error with
  /// it.
  StateDict save(StateScope scope, int rank, const EngineCounters& counters,
                 std::string problem = "");

  /// Engine::load_state_dict(). Collective, blocking. Throws c10::Error on every rank with all that
  /// is wrong on any rank and nothing changed; CommError with the state half loaded. Fills in every
  /// slice that this rank keeps and `counters`; bumps no version of parameters in units and accepts
  /// nothing: the caller does. Bits are kept, also of NaN and -0. An entry in another order of
  /// memory (channels_last) is converted; another dtype is refused, also where masters would have
  /// the values: they are entries of their own. Sends 2(N-1)/N of the state; temporary memory as
  /// save(), and of one parameter twice where its order differs. `state` may lack what `partial`
  /// says, equal on all ranks.
  void load(const StateDict& state, EngineCounters& counters, const PartialState& partial = {});

  // For an engine that is built anew: what the old one had goes to the new one.

  /// Local. What lies in this rank's atoms of the slots that `wants`, as save() under kSharded; on
  /// rank 0 also the numbers. Together the ranks have each element once.
  StateDict take(const std::function<bool(const StateRegion& region, const StateSlot& slot)>& wants,
                 const EngineCounters& counters) const;
  /// Collective. As load(), of a `state` that may lack anything, and of which states that this run
  /// has no use for are left out.
  void put_back(StateDict state, EngineCounters& counters);

 private:
  using Wants = std::function<bool(const StateRegion& region, const StateSlot& slot)>;

  void save_atom(const StateTable& table, const StateRegion& region, StateDict& state,
                 const Wants& wants = {}) const;
  void load_all(const StateTable& table, std::vector<StateNumber> numbers, const StateDict& state,
                EngineCounters& counters);
  void save_unit(const StateTable& table, const StateRegion& region, StateDict* state);
  void save_whole(const StateTable& table, const StateRegion& region, StateDict* state);
  void save_replica(const StateTable& table, const StateRegion& region, StateScope scope,
                    StateDict* state);

  at::Tensor assemble(const StateTable& table, const StateRegion& region, const StateDict& state,
                      const StateClaims& claims);
  void write(const StateTable& table, const StateRegion& region, const at::Tensor& bytes,
             const StateClaims& claims, const ReadOnlyMemory& read_only) const;
  std::string unwritable(const StateTable& table, const StateDict& state, const StateClaims& claims,
                         const ReadOnlyMemory& read_only);

  ProcessGroup& group_;
  StateSlices& slices_;
};

}  // namespace tessera::internal
