#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/optim/plan/parameter_groups.h"

namespace tessera::internal {

/// Engine::set_schedule(): the learning rates of an update, computed from its number alone, so that
/// nothing has to be saved. Local; used by one thread.
class RateSchedule {
 public:
  using Function = std::function<double(int64_t update, std::string_view group)>;

  /// Replaces the function; an empty one ends the schedule.
  void set(Function rate);

  /// Sets the rates of update number `update` in all groups. Returns why it cannot, "[optim]
  /// <what>: got X, expected Y; <remedy>" or what the function threw; "" if it did, or there is no
  /// schedule. Rates out of range are set: ParameterGroups::problem() finds them. Allocates
  /// nothing.
  std::string apply(int64_t update, ParameterGroups& groups);

  /// Undoes the last apply(), whose update is not made: the groups get their earlier rates back.
  /// Does nothing if apply() set none, or was not called since.
  void take_back(ParameterGroups& groups);

  /// Called when the groups' rates were rightly set by something else (a state was loaded).
  void forget() {
    last_.clear();
    before_.clear();
  }

 private:
  Function rate_;
  std::vector<double> last_;    // what apply() set, by group; empty if nothing
  std::vector<double> before_;  // what they had before that; empty if nothing can be taken back
  bool had_last_ = false;       // whether last_ was set before apply()
};

}  // namespace tessera::internal
