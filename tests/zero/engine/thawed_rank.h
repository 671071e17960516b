#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tessera/parameter_predicate.h"
#include "tessera/tests/support/engine_rank.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

/// A model that trains only the parameters that `trains` accepts.
inline std::shared_ptr<Net> thawed(const std::string& model, const ParameterPredicate& trains,
                                   uint64_t seed) {
  std::shared_ptr<Net> net = prepare(subject(model).make(), at::kFloat, seed);
  for (const auto& entry : net->named_parameters()) {
    entry.value().set_requires_grad(trains(entry.key(), entry.value()));
  }
  return net;
}

/// A rank that trains some of its parameters; in bfloat16 with a scaled loss.
struct ThawedRank : EngineRank<Net> {
  ThawedRank(std::shared_ptr<ProcessGroup> group, const std::string& model,
             const Configuration& configuration, const ParameterPredicate& trains,
             uint64_t seed = 3,
             const OptimizerPlan& plan = torch::optim::AdamWOptions(0.02).eps(1e-6))
      : EngineRank(std::move(group), thawed(model, trains, seed), plan, options_for(configuration)),
        trained(subject(model)),
        dtype(configuration.precision.parameters.value_or(at::kFloat)) {}

  at::Tensor loss(int step) const override {
    const Schedule schedule{.name = ""};
    const Moment moment{.step = step, .rank = world->rank()};
    return engine->scale(
        loss_of(*net, batch_of(trained, dtype, schedule, moment, 0), moment, schedule));
  }
  void train(int begin, int end) const {
    for (int step = begin; step < end; ++step) EngineRank::train(step);
  }
  StateDict state() const { return engine->state_dict(StateScope::kEveryRank); }

  Subject trained;
  at::ScalarType dtype;

 private:
  static Options options_for(const Configuration& configuration) {
    Options options = small_options_of(configuration);
    if (configuration.precision.parameters == at::kBFloat16) {
      options.loss_scale = LossScale{.growth_interval = 3};
    }
    return options;
  }
};

inline bool all_train(std::string_view) { return true; }

}  // namespace tessera::internal::testing
