#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tessera/core/access/access_observer.h"
#include "tessera/core/device/device.h"
#include "tessera/core/layout/flat_parameters.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"
#include "tessera/trace.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// All-gathers updated optimizer slices to every rank whose parameter slice contains them. Where
/// communication runs beside computation and units are resident, the all-gather continues after the
/// step. An operator that reads a unit whose values have not arrived waits for them; any other
/// access throws. On a GPU not the operator waits but its stream, and so does each further stream
/// that reads the unit; once the first stream waits, other accesses throw no more.
class ParameterAllGather {
 public:
  /// For degrees with o > p. References must outlive it. Collective: makes subgroups where the
  /// degrees need them.
  ParameterAllGather(ProcessGroup& group, const UnitPlan& plan, const SliceMap& slices,
                     FlatParameters& flat, Trace* trace);
  ~ParameterAllGather();
  ParameterAllGather(const ParameterAllGather&) = delete;
  ParameterAllGather& operator=(const ParameterAllGather&) = delete;

  /// All-gathers `units`, whose optimizer slices are new. Collective; may return while all-gathers
  /// are under way.
  void start(const std::vector<size_t>& units);

  /// Waits for all-gathers under way. Blocking; on a GPU only the current stream waits, and other
  /// streams still do when they read a unit. Throws CommError if one has failed, now or before.
  void finish();

 private:
  class Pending;

  void complete(Pending& pending);
  void forget();

  ProcessGroup& group_;
  const UnitPlan& plan_;
  const SliceMap& slices_;
  FlatParameters& flat_;
  Trace* trace_;
  const std::shared_ptr<Device> device_;  // of the parameters; null on a CPU
  struct Axis {
    ProcessGroup* group;
    std::shared_ptr<ProcessGroup> owned;  // null: the engine's own group
    // The parameter slice is cut into this many contiguous runs. An all-gather over `group` fills
    // one of them.
    int outer;
  };
  std::vector<Axis> axes_;  // in the order of all-gathers: kOptimizer, kGradients

  // Guards the members below. An operator of another thread may lock it after this object is gone.
  const std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
  std::vector<std::shared_ptr<Pending>> pending_;
  std::optional<CommError> failure_;
  std::unique_ptr<AccessObserver> observer_;
};

}  // namespace tessera::internal
