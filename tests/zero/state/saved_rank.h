#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

namespace tessera::internal::testing {

/// The dtype in which a model is trained under `configuration`.
inline at::ScalarType dtype_of(const Configuration& configuration) {
  return configuration.precision.parameters.value_or(at::kFloat);
}

/// `configuration` with parameters in bfloat16, over masters; ranks then scale the loss.
inline Configuration in_bfloat16(Configuration configuration) {
  configuration.precision.parameters = at::kBFloat16;
  return configuration;
}

/// One rank of a run.
struct SavedRank : EngineRank<Net> {
  SavedRank(std::shared_ptr<ProcessGroup> group, const std::string& model,
            const Configuration& configuration, uint64_t seed)
      : SavedRank(std::move(group), subject(model), configuration,
                  prepare(subject(model).make(), at::kFloat, seed)) {}

  at::Tensor loss(int step) const override {
    const Schedule schedule{.name = ""};
    const Moment moment{.step = step, .rank = world->rank()};
    const Batch batch = batch_of(trained, dtype, schedule, moment, 0);
    return engine->scale(loss_of(*net, batch, moment, schedule));
  }
  void train(int begin, int end) const {
    for (int step = begin; step < end; ++step) EngineRank::train(step);
  }

  Subject trained;
  at::ScalarType dtype;

 private:
  SavedRank(std::shared_ptr<ProcessGroup> group, Subject subject,
            const Configuration& configuration, const std::shared_ptr<Net>& model)
      : EngineRank(std::move(group), model, make_plan(*model), scaled_options_of(configuration)),
        trained(std::move(subject)),
        dtype(dtype_of(configuration)) {}
  static Options scaled_options_of(const Configuration& configuration) {
    Options options = small_options_of(configuration);
    if (dtype_of(configuration) == at::kBFloat16)
      options.loss_scale = LossScale{.growth_interval = 3};
    return options;
  }
};

using States = std::vector<StateDict>;  // by rank

/// Runs `body` on `world` ranks and returns each one's result.
inline States on_ranks(int world,
                       const std::function<StateDict(std::shared_ptr<ProcessGroup>)>& body) {
  States states(static_cast<size_t>(world));
  run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    const auto rank = static_cast<size_t>(group->rank());
    states[rank] = body(std::move(group));
  });
  return states;
}

/// The states that a run saves after `steps` steps.
inline States saved_after(int steps, int world, const std::string& model,
                          const Configuration& configuration, StateScope scope) {
  return on_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), model, configuration, 3);
    run.train(0, steps);
    return run.engine->state_dict(scope);
  });
}

/// The named configurations, and hybrids if the world allows them; or, unless takes_all_rows(),
/// those that split state in each possible way, in one of the worlds 1, 3 and 4.
inline std::vector<Configuration> configurations_at(int world) {
  if (!takes_all_rows()) {
    const Configuration ddp = configuration_of(Strategy::kDdp);
    const Configuration zero2 = configuration_of(Strategy::kZero2);
    const Configuration zero3 = configuration_of(Strategy::kZero3);
    if (world == 1) return {ddp, zero3};
    if (world == 2) return {zero2, ddp, zero3};
    if (world == 4) return {zero2, hybrid(1, 2, 2), hybrid(2, 2, 2)};
    return {ddp, configuration_of(Strategy::kZero1), zero3};
  }
  std::vector<Configuration> configurations = named_configurations();
  if (world % 2 == 0) configurations.push_back(hybrid(2, 2, 2));
  if (world == 4) configurations.push_back(hybrid(1, 2, 2));
  return configurations;
}

}  // namespace tessera::internal::testing
