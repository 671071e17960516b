#pragma once

#include <memory>

#include "tessera/optim/slices/flat_average.h"
#include "tessera/options.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/parameters/parameter_store.h"

namespace tessera::internal {

/// Returns null unless `options` ask for an average. Makes an average of the masters of `store`; it
/// lies in pinned memory where the host updates a device's parameters. Local.
std::unique_ptr<FlatAverage> make_average(const Options& options, ParameterStore& store,
                                          const ProcessGroup& group);

/// show() puts the average of the weights into the parameters of all ranks, and hide() puts the
/// weights back. Where masters are a copy, show() rounds the average into the shards, and hide()
/// rounds the masters into them, as a step does. Where masters are views of the shards, show() and
/// hide() both swap the shards with the average, in place. So neither function needs memory for
/// another copy.
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
