#pragma once

#include <string>

#include "tessera/partial_state.h"
#include "tessera/process_group.h"
#include "tessera/state_dict.h"
#include "tessera/zero/state/state_numbers.h"
#include "tessera/zero/state/streamed_state.h"

namespace tessera::internal {

/// Does Engine::state_dict() and load_state_dict(): a state in memory is a sink and a source of the
/// stream (StreamedState). What other ranks have or need is sent by region. Holds no memory.
///
/// The caller makes sure that nothing is being all-gathered, gathered or reduced, and that no rank
/// reads parameters during load().
class StateTransfer {
 public:
  /// `group` is the stream's. References must outlive it.
  StateTransfer(ProcessGroup& group, StreamedState& stream) : group_(group), stream_(stream) {}

  /// Engine::state_dict(). Collective, blocking. Throws c10::Error on every rank if `scope` or
  /// `rank` differ, if `rank` is out of range, or if any rank has a `problem` ("" for none).
  /// kSharded sends nothing except that check. Other scopes take temporary memory for this rank's
  /// part of the state plus twice the largest region (a unit's parameters, masters or one of its
  /// optimizer states, which counts in full even if only some parameters have it). Every rank sends
  /// and receives 2(N-1)/N of the state, and under kOneRank half of that.
  StateDict save(StateScope scope, int rank, const EngineCounters& counters,
                 std::string problem = "");

  /// Engine::load_state_dict(). Collective, blocking. Throws c10::Error on every rank, with nothing
  /// changed, that lists the problems of all ranks; throws CommError with the state half loaded.
  /// Fills every slice that this rank keeps, and `counters`. The caller must bump versions of
  /// parameters in units and accept the values. Bits are kept, also of NaN and -0. An entry in
  /// another memory order (channels_last) is converted. Another dtype is refused, also where
  /// masters would have the values, because masters are entries of their own. Sends 2(N-1)/N of the
  /// state. Needs temporary memory for the largest region, plus twice one parameter if its order
  /// differs. `state` may lack what `partial` says, equal on all ranks.
  void load(const StateDict& state, EngineCounters& counters, const PartialState& partial = {});

  // For an engine that is built anew: moves the old engine's state to the new one.

  /// Returns this rank's atoms of the slots that `wants` selects, like save() under kSharded, and
  /// on rank 0 also the numbers. Each element is on exactly one rank. Local.
  StateDict take(const StreamedState::Wants& wants, const EngineCounters& counters) const;
  /// Like load(), but any entry may be missing in `state`, and states that this run does not use
  /// are left out. Collective.
  void put_back(StateDict state, EngineCounters& counters);

 private:
  void load(StateContents& contents, const StateDict& state, EngineCounters& counters);

  ProcessGroup& group_;
  StreamedState& stream_;
};

}  // namespace tessera::internal
