#pragma once

#include <string>

#include "tessera/partial_state.h"
#include "tessera/process_group.h"
#include "tessera/state_dict.h"
#include "tessera/zero/state/state_numbers.h"
#include "tessera/zero/state/streamed_state.h"

namespace tessera::internal {

/// Implements Engine::state_dict() and load_state_dict() on StreamedState, with a StateDict in
/// memory as its sink or source. Values that other ranks have or need are sent region by region.
/// Holds no memory.
///
/// The caller makes sure that nothing is being all-gathered, gathered or reduced, and that no rank
/// reads parameters during load().
class StateTransfer {
 public:
  /// `group` is the stream's. References must outlive it.
  StateTransfer(ProcessGroup& group, StreamedState& stream) : group_(group), stream_(stream) {}

  /// Engine::state_dict(). Collective, blocking. Throws c10::Error on every rank if `scope` or
  /// `rank` differ between ranks, if either is out of range, or if any rank has a `problem` ("" for
  /// none). Under kSharded this check is the only communication. Under the other scopes save()
  /// takes temporary memory for this rank's part of the state plus twice the largest region. (A
  /// region is a unit's parameters, its masters or one of its optimizer states; a state counts in
  /// full even if only some parameters of the unit have it.) Every rank then sends and receives
  /// 2(N-1)/N of the state under kEveryRank, and half of that under kOneRank.
  StateDict save(StateScope scope, int rank, const EngineCounters& counters,
                 std::string problem = "");

  /// Engine::load_state_dict(). Collective, blocking. If any rank has a problem with the state,
  /// throws c10::Error that lists the problems of all ranks, on every rank, with nothing changed.
  /// After a CommError the state is half loaded. Fills every slice that this rank keeps, and
  /// `counters`. Afterwards the caller must bump the versions of parameters in units and accept
  /// their values, as ParameterStore::announce() does. Bits are kept, also of NaN and -0. An entry
  /// in another memory order (channels_last) is converted. An entry of another dtype is refused.
  /// This holds also for parameters whose masters have that dtype, because masters have entries of
  /// their own. Sends 2(N-1)/N of the state. Needs temporary memory for the largest region, plus
  /// twice one parameter if its order differs. `partial` says which entries `state` may lack, and
  /// is equal on all ranks.
  void load(const StateDict& state, EngineCounters& counters, const PartialState& partial = {});

  // For an engine that is rebuilt: these move the old engine's state to the new one.

  /// Returns this rank's atoms of the slots that `wants` selects, like save() under kSharded, but
  /// leaves out tensors that every rank has (kReplica). Rank 0 also gets the numbers that `wants`
  /// selects. Each element is on exactly one rank. Local.
  StateDict take(const StreamedState::Wants& wants, const EngineCounters& counters) const;
  /// Like load(), but any entry may be missing in `state`, and entries that this run does not have
  /// are ignored. Collective.
  void put_back(StateDict state, EngineCounters& counters);

 private:
  void load(StateContents& contents, const StateDict& state, EngineCounters& counters);

  ProcessGroup& group_;
  StreamedState& stream_;
};

}  // namespace tessera::internal
