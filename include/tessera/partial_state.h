#pragma once

#include "tessera/parameter_predicate.h"

namespace tessera {

/// How a state that is loaded may differ from the run's own: it was saved when other parameters
/// were trained, or by a run of fewer. By default it has exactly the run's entries. Equal on all
/// ranks.
struct PartialState {
  /// Accepts the parameters whose entries may be missing; empty: none. If a parameter's value
  /// ("model.<name>") is missing, the parameter and its other missing entries stay as they are. If
  /// the value is there, missing entries start as in a new engine: states at zero or their
  /// algorithm's initial value, the count at 0, master and average equal to the value. A master
  /// without its value is used if it rounds to the value that the parameter has. Numbers of a group
  /// ("optimizer.<group>.lr") may be missing, and stay, if all trained parameters of the group are
  /// accepted; the engine's numbers (steps, scaler) and buffers, if all parameters are. So may a
  /// communication hook's entries of no parameter, which start anew if all values are there.
  ParameterPredicate may_lack = {};

  /// Entries "optimizer.<name>.<state>" of parameters that are frozen in this run are left out. By
  /// default they are refused.
  bool leaves_out_frozen = false;

  /// Entries "comm_hook.<...>" that this run's hook (Engine::register_comm_hook()) does not have
  /// are left out. By default they are refused.
  bool leaves_out_comm_hook = false;
};

}  // namespace tessera
