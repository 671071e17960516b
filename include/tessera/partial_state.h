#pragma once

#include "tessera/parameter_predicate.h"

namespace tessera {

/// How the entries of a state that is loaded may differ from those of this run, because it was
/// saved when other or fewer parameters were trained. By default the loaded state must have exactly
/// this run's entries. Equal on all ranks.
struct PartialState {
  /// Accepts the parameters whose entries may be missing; empty: none. If a parameter's value
  /// ("model.<name>") is there, missing entries start as in a new engine: the optimizer's states at
  /// zero or their algorithm's initial value, the parameter's step count at 0, master and average
  /// equal to the value. If the value is missing, the parameter and its other missing entries stay
  /// as they are. If the value is missing and a master is there, an element of this master is used
  /// only if it rounds to the parameter's own element.
  ///
  /// If the predicate accepts all trained parameters of a group, numbers of the group
  /// ("optimizer.<group>.lr") may be missing, too. Missing ones stay as they are.
  ///
  /// If it accepts all parameters, these may be missing, too: the engine's numbers (steps, scaler),
  /// buffers, and a communication hook's entries that belong to no parameter. Missing ones stay as
  /// they are, with one exception: if the values of all parameters are there, the hook's entries
  /// start as in a new engine.
  ParameterPredicate may_lack = {};

  /// If true, entries "optimizer.<name>.<state>" of parameters that are frozen in this run are not
  /// loaded; if false, they are refused.
  bool leaves_out_frozen = false;

  /// If true, entries "comm_hook.<...>" that this run's hook (Engine::register_comm_hook()) does
  /// not have are not loaded; if false, they are refused.
  bool leaves_out_comm_hook = false;
};

}  // namespace tessera
