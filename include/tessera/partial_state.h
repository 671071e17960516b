#pragma once

#include "tessera/parameter_predicate.h"

namespace tessera {

/// How a state that is loaded may differ from the run's own, because it was saved when other or
/// fewer parameters were trained. By default it has exactly the run's entries. Equal on all ranks.
struct PartialState {
  /// Accepts the parameters whose entries may be missing; empty: none. If a parameter's value
  /// ("model.<name>") is missing, the parameter and its other missing entries stay as they are. If
  /// the value is there, missing entries start as in a new engine: states at zero or their
  /// algorithm's initial value, the count at 0, master and average equal to the value. If a master
  /// is there but its parameter's value is not, the master is used if it rounds to the value that
  /// the parameter has. Numbers of a group ("optimizer.<group>.lr") may be missing, and stay, if
  /// all trained parameters of the group are accepted; the engine's numbers (steps, scaler) and
  /// buffers, if all parameters are. The same holds for a communication hook's entries that belong
  /// to no parameter; if all values are there, these start as in a new engine.
  ParameterPredicate may_lack = {};

  /// Entries "optimizer.<name>.<state>" of parameters that are frozen in this run are left out. By
  /// default they are refused.
  bool leaves_out_frozen = false;

  /// Entries "comm_hook.<...>" that this run's hook (Engine::register_comm_hook()) does not have
  /// are left out. By default they are refused.
  bool leaves_out_comm_hook = false;
};

}  // namespace tessera
