#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/core/reduce/registered_hook.h"
#include "tessera/engine.h"
#include "tessera/memory_meter.h"
#include "tessera/optim/plan/rate_schedule.h"
#include "tessera/optim/plan/refusing_optimizer.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/trace.h"

namespace tessera::internal {

/// The part of an engine that stays in place when the engine is rebuilt to train other parameters
/// (RebuildableEngine): objects to which users hold references, and settings that users have made.
struct PersistentState {
  std::shared_ptr<ProcessGroup> group;           ///< the engine's own group
  std::shared_ptr<torch::nn::Module> model;      ///< not owned if the caller keeps the model
  std::vector<NamedTensor> buffers;              ///< the buffers that the model had at parallelize
  std::unique_ptr<RefusingOptimizer> optimizer;  ///< the groups and options that users see
  std::unique_ptr<Trace> trace;                  ///< null without Options::trace
  MemoryMeter meter = {};
  RateSchedule schedule = {};
  RegisteredHook comm_hook = {};
  StepResult last_result = {};
  int64_t micro_batches = 0;  ///< MicroBatches::count(): number of backwards so far, over all ranks
  /// the call that runs a user's function (RunningCall); null: none
  const char* running = nullptr;
  std::shared_ptr<int> no_sync_depth = std::make_shared<int>(0);
};

}  // namespace tessera::internal
