#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tessera/engine.h"
#include "tessera/optimizer_plan.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/models.h"

namespace tessera::internal::testing {

/// The course of a training run; every rank and the oracle follow the same one.
struct Schedule {
  std::string name;
  int steps = 4;
  int micro_steps = 1;
  enum class Sync : uint8_t {
    kEach,  ///< reduce in each micro-step
    kLast,  ///< no_sync for all but the last
  } sync = Sync::kEach;
  double max_grad_norm = std::numeric_limits<double>::infinity();
  std::optional<int64_t> bucket_bytes = {};  ///< where parameters are whole; unset: the default
  int64_t rows = 4;                          ///< samples per rank and micro-step
};

/// Prints the name, for messages of tests.
std::ostream& operator<<(std::ostream& stream, const Schedule& schedule);

/// The schedules of the equivalence suite: 1 and 3 micro-steps, both values of Sync, with and
/// without clipping, many buckets and few.
const std::vector<Schedule>& schedules();

/// The schedule with this name. Throws std::out_of_range.
const Schedule& schedule_called(const std::string& name);

/// The suite's AdamW: eps 1e-6, and two groups by name if the model has such parameters.
OptimizerPlan make_plan(const torch::nn::Module& model);

/// The batch of one rank in one micro-step.
Batch batch_of(const Subject& subject, at::ScalarType dtype, const Schedule& schedule,
               const Moment& moment, int micro_step);

/// The user's loss: the mean over the rank's batch, divided by the number of micro-steps.
at::Tensor loss_of(Net& net, const Batch& batch, const Moment& moment, const Schedule& schedule);

/// The results of a run.
struct Outcome {
  std::vector<double> losses;                       ///< [step][micro-step], mean over ranks
  std::vector<std::vector<double>> losses_by_rank;  ///< [rank][step * micro-step]; empty: unknown
  std::vector<double> grad_norms;                   ///< [step]
  std::map<std::string, at::Tensor> parameters;     ///< contiguous copies by every name
};

/// Copies of all parameters of `model` by name.
std::map<std::string, at::Tensor> copy_parameters(const torch::nn::Module& model);

/// Options of train() besides the schedule.
struct TrainOptions {
  /// Makes the optimizer plan.
  std::function<OptimizerPlan(const torch::nn::Module& model)> plan = &make_plan;
  /// Changes the options made from configuration and schedule.
  std::function<void(Options&)> adjust = {};
  /// Called with a loss, already multiplied by the loss scale, instead of backward().
  std::function<void(Engine&, const torch::nn::Module& model, const at::Tensor& loss)> backward =
      {};
  /// Called after each backward and after each step, before the parameters are copied.
  std::function<void(Engine&, int step)> after_backward = {};
  std::function<void(Engine&, int step)> after_step = {};
};

/// `configuration` and `schedule` as an engine takes them.
Options options_of(const Configuration& configuration, const Schedule& schedule);

/// Runs one rank's training under an engine. Ranks make different parameters, which parallelize()
/// replaces by rank 0's. The model is made in `dtype`; batches have its compute dtype.
Outcome train(const Subject& subject, at::ScalarType dtype, const Configuration& configuration,
              const Schedule& schedule, const std::shared_ptr<ProcessGroup>& world,
              const TrainOptions& options = {});

/// Trains on `size` ranks that are threads. Throws std::runtime_error if the ranks' parameters or
/// norms differ. `decorate` may wrap each rank's group.
using Decorate = std::function<std::shared_ptr<ProcessGroup>(std::shared_ptr<ProcessGroup> world)>;
Outcome train_on_threads(const Subject& subject, at::ScalarType dtype,
                         const Configuration& configuration, const Schedule& schedule, int size,
                         const TrainOptions& options = {}, const Decorate& decorate = {});

/// The outcome of train_on_threads() without options, under any configuration that keeps ddp's bits
/// (Configuration::keeps_bits()): ddp's outcome, trained once per program.
const Outcome& outcome_of_ddp(const Subject& subject, at::ScalarType dtype,
                              const Precision& precision, const Schedule& schedule, int size);

/// The outcome that `configuration` must have: ddp's if it keeps ddp's bits, otherwise its own.
Outcome expected_outcome(const Subject& subject, at::ScalarType dtype,
                         const Configuration& configuration, const Schedule& schedule, int size);

}  // namespace tessera::internal::testing
