#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/core/grad/backward_end.h"
#include "tessera/core/layout/slice_map.h"
#include "tessera/core/options/resolved_options.h"
#include "tessera/core/sched/step_times.h"
#include "tessera/core/sched/stream_join.h"
#include "tessera/core/sched/trace_span.h"
#include "tessera/optimizer_plan.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/engine/persistent_state.h"
#include "tessera/zero/step/engine_failure.h"

namespace tessera::internal {

/// The parts of an engine that parallelize() has checked and all ranks have agreed on.
struct EngineParts {
  std::shared_ptr<ProcessGroup> group;  ///< the engine's own
  ParameterTable table;
  UnitPlan plan;
  ResolvedOptions options;
  OptimizerPlan optimizer;
  /// For each entry of the table the index of its optimizer group: what OptimizerPlan::assign()
  /// returned.
  std::vector<size_t> group_of;
};

/// Objects that every part of an engine uses: the parts that all ranks agreed on, the state that
/// outlives the engine, and the records of failures, streams and times. Each engine has one, to
/// which the engine's parts hold references.
struct EngineContext {
  /// `outlives` must outlive this object.
  EngineContext(EngineParts agreed, PersistentState& outlives)
      : parts(std::move(agreed)),
        persistent(outlives),
        group(*parts.group),
        failure(group),
        streams(group.device()),
        slices(parts.options.degrees, group.size(), group.rank()),
        compute(persistent.trace.get()),
        times(group.can().completes_on_host) {}
  EngineContext(const EngineContext&) = delete;
  EngineContext& operator=(const EngineContext&) = delete;

  bool is_any_world_size() const {
    return parts.options.reproducible == Reproducible::kAnyWorldSize;
  }

  const EngineParts parts;
  PersistentState& persistent;
  ProcessGroup& group;
  EngineFailure failure;
  StreamJoin streams;  ///< orders streams that use the engine's memory
  const SliceMap slices;
  ComputeSpans compute;
  StepTimes times;
  /// Watches the thread that makes this object. It is not a member of Backward, which it notifies,
  /// because operators of any thread query it even after Backward is destroyed.
  BackwardWatch backward_watch;
};

}  // namespace tessera::internal
