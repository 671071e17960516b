#pragma once

#include "tessera/parameter_predicate.h"

namespace tessera {

/// How a state that is loaded may differ from the run's own: it was saved when other parameters
/// were trained, or by a run of fewer. By default it has exactly the run's entries. Equal on all
/// ranks.
struct PartialState {
  /// Parameters of which entries may be missing; empty: of none. A parameter whose value
  /// ("model.<name>") is missing stays as it is, with all that is missing of it. Where the value is
  /// there, what is missing begins as in a new engine: states at zero or what their algorithm
  /// begins with, the count at 0, master and average as the value. A master without its value is
  /// taken where it rounds to the value that the parameter has. Numbers of a group
  /// ("optimizer.<group>.lr") may be missing, and stay, if it accepts all trained parameters of the
  /// group; the engine's (steps, scaler) and buffers, if it accepts all parameters. So may what a
  /// communication hook has of no parameter, which begins anew where all values are there.
  ParameterPredicate may_lack = {};

  /// Entries "optimizer.<name>.<state>" of parameters that are frozen in this run are left out. By
  /// default they are refused.
  bool leaves_out_frozen = false;

  /// Entries "comm_hook.<...>" that this run's hook (Engine::register_comm_hook()) does not have
  /// are left out. By default they are refused.
  bool leaves_out_comm_hook = false;
};

}  // namespace tessera
