#pragma once

#include <string>

#include "tessera/partial_state.h"
#include "tessera/process_group.h"
#include "tessera/state_dict.h"
#include "tessera/zero/state/state_numbers.h"
#include "tessera/zero/state/streamed_state.h"

namespace tessera::internal {

/// What Engine::state_dict() and load_state_dict() do: a state in memory is a sink and a source of
/// the stream (StreamedState), and what other ranks have of it, or need, travels region by region.
/// Holds no memory.
///
/// The caller sees to it that nothing is being all-gathered, gathered or reduced, and that no rank
/// reads parameters while load() runs.
class StateTransfer {
 public:
  /// `group` is the stream's. References must outlive it.
  StateTransfer(ProcessGroup& group, StreamedState& stream) : group_(group), stream_(stream) {}

  /// Engine::state_dict(). Collective, blocking. Throws c10::Error on every rank where `scope` or
  /// `rank` differ or `rank` is none, and with `problem`, what this rank has against it ("" for
  /// nothing). kSharded sends nothing but that check. Whole scopes take temporary memory for this
  /// rank's part of the state and twice for the largest region (a unit's parameters, masters or one
  /// of its optimizer states; a state that only some parameters of a unit have counts in full);
  /// every rank sends and receives 2(N-1)/N of the state, and under kOneRank half of that.
  StateDict save(StateScope scope, int rank, const EngineCounters& counters,
                 std::string problem = "");

  /// Engine::load_state_dict(). Collective, blocking. Throws c10::Error on every rank with all that
  /// is wrong on any rank and nothing changed; CommError with the state half loaded. Fills in every
  /// slice that this rank keeps and `counters`; bumps no version of parameters in units and accepts
  /// nothing: the caller does. Bits are kept, also of NaN and -0. An entry in another order of
  /// memory (channels_last) is converted; another dtype is refused, also where masters would have
  /// the values: they are entries of their own. Sends 2(N-1)/N of the state; temporary memory for
  /// the largest region, and for one parameter twice where its order differs. `state` may lack what
  /// `partial` says, equal on all ranks.
  void load(const StateDict& state, EngineCounters& counters, const PartialState& partial = {});

  // For an engine that is built anew: what the old one had goes to the new one.

  /// Local. What lies in this rank's atoms of the slots that `wants`, as save() under kSharded; on
  /// rank 0 also the numbers. Together the ranks have each element once.
  StateDict take(const StreamedState::Wants& wants, const EngineCounters& counters) const;
  /// Collective. As load(), of a `state` that may lack anything, and of which states that this run
  /// has no use for are left out.
  void put_back(StateDict state, EngineCounters& counters);

 private:
  void load(StateContents& contents, const StateDict& state, EngineCounters& counters);

  ProcessGroup& group_;
  StreamedState& stream_;
};

}  // namespace tessera::internal
