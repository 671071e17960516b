#pragma once

#include <memory>

#include "tessera/optim/slices/flat_average.h"
#include "tessera/options.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/parameters/parameter_store.h"

namespace tessera::internal {

/// Makes the average of the masters of `store` if `options` ask for one, in pinned memory where the
/// host updates a device's parameters; else returns null. Local.
std::unique_ptr<FlatAverage> make_average(const Options& options, ParameterStore& store,
                                          const ProcessGroup& group);

/// Puts the average of the weights into the parameters of all ranks, and the weights back. Where
/// masters are a copy, show() rounds the average into the shards, and hide() rounds the masters, as
/// a step would. Elsewhere shards and average are swapped in place. So neither needs memory for a
/// copy.
///
/// show() and hide() are collective. Call them between steps, when no unit is whole on any rank and
/// nothing is under way. Version counters rise as in a step, so a backward through an earlier
/// forward throws.
class ShownAverage {
 public:
  /// References must outlive it.
  ShownAverage(const ParameterTable& table, const UnitPlan& plan, ParameterStore& store,
               FlatAverage& average)
      : table_(table), plan_(plan), store_(store), average_(average) {}

  void show();
  void hide();

 private:
  void announce();

  const ParameterTable& table_;
  const UnitPlan& plan_;
  ParameterStore& store_;
  FlatAverage& average_;
};

}  // namespace tessera::internal
