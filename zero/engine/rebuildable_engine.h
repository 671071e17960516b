#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/core/process/fork.h"
#include "tessera/engine.h"
#include "tessera/errors.h"
#include "tessera/optimizer_plan.h"
#include "tessera/parameter_predicate.h"
#include "tessera/parameter_table.h"
#include "tessera/state_dict.h"
#include "tessera/zero/engine/persistent_state.h"
#include "tessera/zero/engine/sharded_engine.h"

namespace tessera::internal {

/// Holds the present engine, and rebuilds it when other parameters are to be trained. Note
/// [What trains changes] in rebuildable_engine.cc.
class RebuildableEngine {
 public:
  /// Collective. Like ShardedEngine's constructor, takes the parts that parallelize() has checked
  /// and that all ranks have agreed on.
  RebuildableEngine(EngineParts parts, std::shared_ptr<torch::nn::Module> model,
                    std::vector<NamedTensor> buffers);

  /// Returns the present engine. Throws CommError in a child of fork(), and if a rebuild has failed
  /// so that there is no engine.
  ShardedEngine& get();
  const ShardedEngine& get() const { return const_cast<RebuildableEngine*>(this)->get(); }
  PersistentState& persistent() { return persistent_; }
  const Origin& origin() const { return origin_; }

  /// Begins the collective call `call`, which is made between steps and which a rank without
  /// batches in a join() cannot follow. If the model shows its average, does what `inside` says
  /// (AverageInUse::leave()). Waits for the outcome of the last step. `mends`: the call loads a
  /// state, so it may be made after failures that a load repairs. Collective, blocking. Throws if
  /// the call may not be made; then nothing is under way.
  ShardedEngine& enter(const char* call, AverageInUse::Inside inside, bool mends = false);
  /// Like enter(), for a call that changes how the engine works. Throws inside a loop over join().
  ShardedEngine& begin_change(const char* call);

  /// Engine's calls of the same names.
  StateDict set_trainable(const ParameterPredicate& trains, FrozenState frozen);
  void add_group(OptimizerGroup group);

 private:
  /// Returns the next engine's parts, made from the present ones, or adds to `problems` and returns
  /// nothing.
  using Prepare = std::function<std::optional<EngineParts>(const EngineParts& now,
                                                           std::vector<std::string>& problems)>;

  EngineParts agree(const char* call, const Prepare& prepare,
                    const std::vector<std::string>& arguments);
  void rebuild(const char* call, EngineParts next, StateDict* left);
  void lose(const char* call) noexcept;

  const Origin origin_;
  PersistentState persistent_;
  std::optional<ShardedEngine> now_;
  std::optional<CommError> lost_;  // why there is no engine
  int64_t rebuilds_ = 0;
};

}  // namespace tessera::internal
