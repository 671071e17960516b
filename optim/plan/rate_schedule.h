#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/optim/plan/parameter_groups.h"

namespace tessera::internal {

/// Sets the learning rates of each update. The function given to Engine::set_schedule() computes
/// them from the update's number alone, so nothing has to be saved. Local; used by one thread.
class RateSchedule {
 public:
  using Function = std::function<double(int64_t update, std::string_view group)>;

  /// Replaces the function; an empty one ends the schedule.
  void set(Function rate);

  /// Sets the rates of update number `update` in all groups. Returns why the rates cannot be set,
  /// "[optim] <what>: got X, expected Y; <remedy>" or what the function threw; "" if they were set
  /// or there is no schedule. Rates out of range are set, too; ParameterGroups::problem() finds
  /// them. Allocates nothing.
  std::string apply(int64_t update, ParameterGroups& groups);

  /// Must be called if the update for which apply() was last called is not made: gives the groups
  /// back the rates that they had before. Does nothing if that apply() set no rates or is undone
  /// already.
  void take_back(ParameterGroups& groups);

  /// Must be called after a call, other than apply(), that may rightly set the groups' rates, such
  /// as the loading of a state. Otherwise the next apply() would report these rates as an error.
  void forget() {
    last_.clear();
    before_.clear();
  }

 private:
  Function rate_;
  std::vector<double> last_;    // what apply() set, by group; empty if nothing
  std::vector<double> before_;  // the groups' rates before that; empty if nothing can be taken back
  bool had_last_ = false;       // whether last_ had rates before the last apply()
};

}  // namespace tessera::internal
