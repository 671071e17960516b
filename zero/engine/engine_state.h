#pragma once

#include <functional>
#include <vector>

#include "tessera/partial_state.h"
#include "tessera/state_dict.h"
#include "tessera/state_stream.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/engine_step.h"
#include "tessera/zero/engine/step_gradients.h"
#include "tessera/zero/engine/trained_parameters.h"
#include "tessera/zero/state/state_slices.h"
#include "tessera/zero/state/state_transfer.h"
#include "tessera/zero/state/streamed_state.h"

namespace tessera::internal {

/// Saves the run's state from the engine and loads it into the engine: what StreamedState handles,
/// and the engine's counters. Used between steps by one thread. A function that is named like one
/// of Engine has the same contract.
class EngineState {
 public:
  /// References must outlive it.
  EngineState(EngineContext& context, TrainedParameters& trained, StepGradients& gradients,
              EngineStep& step);

  StateDict state_dict(StateScope scope, int rank);
  void write_state(StateSink& sink);
  std::vector<StateOutline> state_entries();
  void load_state_dict(const StateDict& state, const PartialState& partial);
  void read_state(StateSource& source, const PartialState& partial);

  /// Takes the state out for an engine that trains `next` and replaces this one. Sets `stays` to
  /// this rank's part of the state that the new engine needs. Sets `left`, unless it is null, to
  /// this rank's part of the state of parameters that become frozen. Local, but an exception ends
  /// the engine on all ranks.
  void take_out(const char* call, const ParameterTable& next, StateDict& stays, StateDict* left);
  /// Called on the new engine. Loads the state that take_out() put into `stays` on all ranks.
  /// Collective.
  void put_back(const char* call, StateDict stays);

 private:
  StateContents agree_to_save(const char* call);
  EngineCounters counters() const;
  void take_counters(const EngineCounters& loaded);
  void load(const char* call, const std::function<void(EngineCounters&)>& read);

  EngineContext& context_;
  TrainedParameters& trained_;
  StepGradients& gradients_;
  EngineStep& step_;
  StateSlices slices_;
  StreamedState stream_;
  StateTransfer transfer_;
};

}  // namespace tessera::internal
