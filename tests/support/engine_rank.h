#pragma once

#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/engine.h"
#include "tessera/optimizer_plan.h"
#include "tessera/parallelize.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/configuration.h"

namespace tessera::internal::testing {

/// The options of `configuration`, with several buckets in models of a few KiB.
inline Options small_options_of(const Configuration& configuration) {
  Options options = options_of(configuration);
  set_buckets(options, configuration, 1024);
  return options;
}

/// A rank that trains a model under an engine, batch by batch.
template <typename Model>
class EngineRank {
 public:
  virtual ~EngineRank() = default;

  /// The loss of this rank's batch number `step`.
  virtual at::Tensor loss(int step) const = 0;
  void backward(int step) const { loss(step).backward(); }
  StepResult train(int step) const {
    backward(step);
    return engine->step();
  }

  std::shared_ptr<ProcessGroup> world;
  std::shared_ptr<Model> net;
  std::unique_ptr<Engine> engine;

 protected:
  EngineRank(std::shared_ptr<ProcessGroup> group, std::shared_ptr<Model> model,
             const OptimizerPlan& plan, const Options& options)
      : world(std::move(group)),
        net(std::move(model)),
        engine(parallelize(net, plan, options, world)) {}
};

}  // namespace tessera::internal::testing
