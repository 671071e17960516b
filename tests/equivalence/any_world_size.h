#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

/// Dropout on a layer's outputs with a mask that depends only on the micro-batch's number. Sizes
/// are odd; one layer is frozen and one is unused.
struct Dropping : Net {
  at::Tensor forward(const at::Tensor& input, const Moment& moment) override {
    const auto number = static_cast<uint64_t>(moment.step * 100 + moment.rank);
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(number);
    const at::Tensor x = at::tanh(frozen(at::tanh(first(input))));
    const at::Tensor kept =
        at::empty(x.sizes(), x.options().dtype(at::kFloat)).bernoulli_(0.7, generator);
    return last(x * kept.to(x.scalar_type()) / 0.7);
  }
  void arrange(at::ScalarType) override {
    for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(7, 61));
  torch::nn::Linear frozen = register_module("frozen", torch::nn::Linear(61, 13));
  torch::nn::Linear unused = register_module("unused", torch::nn::Linear(13, 29));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(13, 5));
};

/// A run over 8 micro-batches per step, on any number of ranks.
struct AnySizeRun {
  Subject subject;
  at::ScalarType dtype = at::kFloat;
  Precision precision = {};
  double max_grad_norm = 0.05;
  Reproducible reproducible = Reproducible::kAnyWorldSize;
  std::function<OptimizerPlan(const torch::nn::Module& model)> plan = &make_plan;
  std::function<void(Options&)> adjust = {};
  /// Called instead of backward(), for example with given gradients.
  std::function<void(Engine&, const torch::nn::Module& model, const at::Tensor& loss)> backward =
      {};
};

inline constexpr int kMicroBatches = 8;

inline Options options_of(const AnySizeRun& run, Configuration configuration) {
  configuration.precision = run.precision;
  Options options = testing::options_of(configuration);
  options.max_grad_norm = run.max_grad_norm;
  options.reproducible = run.reproducible;
  set_buckets(options, configuration, 1024);
  if (run.adjust) run.adjust(options);
  return options;
}

/// Trains steps [first, last) of `run` on one rank: data, branches and dropout follow
/// micro_batch().
inline void train_steps(const AnySizeRun& run, Engine& engine, Net& net, int first, int last,
                        std::vector<double>& norms) {
  const at::ScalarType computed = run.precision.parameters.value_or(run.dtype);
  const int micro_steps = kMicroBatches / engine.group().size();
  for (int step = first; step < last; ++step) {
    for (int micro = 0; micro < micro_steps; ++micro) {
      const int64_t number = engine.micro_batch();
      EXPECT_EQ(number,
                step * kMicroBatches + micro * engine.group().size() + engine.group().rank());
      const Moment moment{.step = static_cast<int>(number) / kMicroBatches,
                          .rank = static_cast<int>(number) % kMicroBatches};
      const Batch batch = draw_batch(run.subject, computed, 3, static_cast<uint64_t>(number) + 500);
      const at::Tensor loss =
          at::mse_loss(net.forward(batch.input, moment), batch.target) / micro_steps;
      run.backward ? run.backward(engine, net, loss) : loss.backward();
    }
    norms.push_back(engine.step().grad_norm);
  }
}

inline std::unique_ptr<Engine> engine_of(const AnySizeRun& run, const Configuration& configuration,
                                         const std::shared_ptr<Net>& net,
                                         const std::shared_ptr<ProcessGroup>& world) {
  return parallelize(net, run.plan(*net), options_of(run, configuration), world);
}

inline constexpr int kAnySizeSteps = 3;

/// Returns how `run` ends on `size` ranks; `check` is called on each rank at the end.
inline Outcome outcome_of(const AnySizeRun& run, const Configuration& configuration, int size,
                          const std::function<void(Engine&)>& check = {}) {
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
    const auto rank = static_cast<size_t>(world->rank());
    const std::shared_ptr<Net> net = prepare(run.subject.make(), run.dtype, 42 + rank);
    const auto engine = engine_of(run, configuration, net, world);
    train_steps(run, *engine, *net, 0, kAnySizeSteps, outcomes[rank].grad_norms);
    if (check) check(*engine);
    const Engine::Scope whole = engine->full_parameters();
    outcomes[rank].parameters = copy_parameters(*net);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(bit_differences(outcome.parameters, outcomes[0].parameters), "");
  }
  return outcomes[0];
}

/// The configurations possible in a world of `size`: every row of the table of strategies.
inline std::vector<Configuration> rows_of(int size) {
  std::vector<Configuration> rows = named_configurations();
  if (size > 1) rows.push_back(apart(configuration_of(Strategy::kZero3)));
  if (size >= 4) {
    for (const Configuration& configuration :
         {hybrid(1, 2, 4), hybrid(2, 2, 2), hybrid(2, 4, 4), hybrid(1, 1, 2), hybrid(1, 2, 2)}) {
      rows.push_back(configuration);
    }
  }
  if (size == 8) {
    rows.push_back(hybrid(2, 4, 8));
    rows.push_back(hybrid(4, 4, 4));
  }
  return rows;
}

}  // namespace tessera::internal::testing
