#include "tessera/tests/support/training.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {
namespace {

bool is_bias(std::string_view name) { return name.find("bias") != std::string_view::npos; }
bool is_first(std::string_view name) { return name.substr(0, 5) == "first"; }

bool has_trainable(const torch::nn::Module& model, bool (*selects)(std::string_view)) {
  for (const auto& entry : model.named_parameters()) {
    if (entry.value().requires_grad() && selects(entry.key())) return true;
  }
  return false;
}

}  // namespace

Options options_of(const Configuration& configuration, const Schedule& schedule) {
  Options options = options_of(configuration);
  options.max_grad_norm = schedule.max_grad_norm;
  if (schedule.bucket_bytes.has_value())
    set_buckets(options, configuration, *schedule.bucket_bytes);
  return options;
}

std::ostream& operator<<(std::ostream& stream, const Schedule& schedule) {
  return stream << schedule.name;
}

const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> all = {
      {.name = "Once", .bucket_bytes = 1024},
      {.name = "OnceClipped", .max_grad_norm = 0.05},
      {.name = "ThriceClipped", .micro_steps = 3, .max_grad_norm = 0.05, .bucket_bytes = 4096},
      {.name = "ThriceNoSync",
       .micro_steps = 3,
       .sync = Schedule::Sync::kLast,
       .bucket_bytes = 1024}};
  return all;
}

const Schedule& schedule_called(const std::string& name) {
  for (const Schedule& schedule : schedules()) {
    if (schedule.name == name) return schedule;
  }
  throw std::out_of_range("no schedule is called " + name);
}

OptimizerPlan make_plan(const torch::nn::Module& model) {
  const auto options = [](double lr, double weight_decay) {
    return torch::optim::AdamWOptions(lr).eps(1e-6).weight_decay(weight_decay);
  };
  OptimizerPlan plan(options(0.02, 0.1));
  if (has_trainable(model, is_bias)) plan.groups.push_back({"biases", is_bias, options(0.03, 0.0)});
  const auto is_first_weight = [](std::string_view name) {
    return is_first(name) && !is_bias(name);
  };
  if (has_trainable(model, is_first_weight)) {
    plan.groups.push_back({"first", is_first_weight, options(0.01, 0.2).betas({0.8, 0.95})});
  }
  return plan;
}

Batch batch_of(const Subject& subject, at::ScalarType dtype, const Schedule& schedule,
               const Moment& moment, int micro_step) {
  const int seed = 10000 + moment.step * 1000 + micro_step * 100 + moment.rank;
  return draw_batch(subject, dtype, schedule.rows, static_cast<uint64_t>(seed));
}

at::Tensor loss_of(Net& net, const Batch& batch, const Moment& moment, const Schedule& schedule) {
  const at::Tensor output = net.forward(batch.input, moment);
  return at::mse_loss(output, batch.target) / static_cast<double>(schedule.micro_steps);
}

std::map<std::string, at::Tensor> copy_parameters(const torch::nn::Module& model) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& entry : model.named_parameters()) {
    copies[entry.key()] = entry.value().detach().contiguous().cpu().clone();
  }
  return copies;
}

Outcome train(const Subject& subject, at::ScalarType dtype, const Configuration& configuration,
              const Schedule& schedule, const std::shared_ptr<ProcessGroup>& world,
              const TrainOptions& options) {
  const int rank = world->rank();
  const std::shared_ptr<Net> net =
      prepare(subject.make(), dtype, kModelSeed + static_cast<uint64_t>(rank));
  net->to(world->device());
  Options engine_options = options_of(configuration, schedule);
  if (options.adjust) options.adjust(engine_options);
  const std::unique_ptr<Engine> engine =
      parallelize(net, options.plan(*net), engine_options, world);
  const at::ScalarType computed = configuration.precision.parameters.value_or(dtype);

  Outcome outcome;
  for (int step = 0; step < schedule.steps; ++step) {
    const Moment moment{.step = step, .rank = rank};
    for (int micro = 0; micro < schedule.micro_steps; ++micro) {
      std::optional<Engine::NoSync> no_sync;
      if (schedule.sync == Schedule::Sync::kLast && micro + 1 < schedule.micro_steps) {
        no_sync.emplace(engine->no_sync());
      }
      Batch batch = batch_of(subject, computed, schedule, moment, micro);
      batch = {batch.input.to(world->device()), batch.target.to(world->device())};
      const at::Tensor loss = loss_of(*net, batch, moment, schedule);
      const at::Tensor scaled = engine->scale(loss);
      if (options.backward) {
        options.backward(*engine, *net, scaled);
      } else {
        scaled.backward();
      }
      outcome.losses.push_back(loss.item<double>());
      if (options.after_backward) options.after_backward(*engine, step);
    }
    // Under asynchronous steps this is the result of the previous step.
    const StepResult result = engine->step();
    if (result.step > static_cast<int64_t>(outcome.grad_norms.size())) {
      outcome.grad_norms.push_back(result.grad_norm);
    }
    if (options.after_step) options.after_step(*engine, step);
  }
  engine->wait();
  if (engine->last_result().step > static_cast<int64_t>(outcome.grad_norms.size())) {
    outcome.grad_norms.push_back(engine->last_result().grad_norm);
  }
  outcome.parameters = copy_parameters(*net);
  return outcome;
}

Outcome train_on_threads(const Subject& subject, at::ScalarType dtype,
                         const Configuration& configuration, const Schedule& schedule, int size,
                         const TrainOptions& options, const Decorate& decorate) {
  std::vector<Outcome> by_rank(static_cast<size_t>(size));
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
    const auto rank = static_cast<size_t>(world->rank());
    if (decorate) world = decorate(std::move(world));
    by_rank[rank] = train(subject, dtype, configuration, schedule, world, options);
  });

  Outcome whole = by_rank[0];
  for (Outcome& outcome : by_rank) {
    const std::string difference = bit_differences(outcome.parameters, whole.parameters) +
                                   bit_differences(outcome.grad_norms, whole.grad_norms);
    if (!difference.empty()) {
      throw std::runtime_error("ranks of one world differ:\n" + difference);
    }
    whole.losses_by_rank.push_back(outcome.losses);
  }
  for (size_t i = 0; i < whole.losses.size(); ++i) {
    double sum = 0.0;
    for (const auto& losses : whole.losses_by_rank) sum += losses[i];
    whole.losses[i] = sum / size;
  }
  return whole;
}

const Outcome& outcome_of_ddp(const Subject& subject, at::ScalarType dtype,
                              const Precision& precision, const Schedule& schedule, int size) {
  static std::map<std::string, Outcome> remembered;
  std::ostringstream key;
  key << subject.name << " " << dtype << " " << size << " " << schedule.name << " "
      << schedule.steps << " " << schedule.micro_steps << " " << static_cast<int>(schedule.sync)
      << " " << schedule.max_grad_norm << " " << schedule.bucket_bytes.value_or(0) << " "
      << schedule.rows;
  for (const std::optional<at::ScalarType>& part :
       {precision.parameters, precision.communication, precision.reduce, precision.master}) {
    key << " " << (part.has_value() ? at::toString(*part) : "own");
  }
  auto it = remembered.find(key.str());
  if (it == remembered.end()) {
    Configuration ddp = configuration_of(Strategy::kDdp);
    ddp.precision = precision;
    it = remembered.emplace(key.str(), train_on_threads(subject, dtype, ddp, schedule, size)).first;
  }
  return it->second;
}

Outcome expected_outcome(const Subject& subject, at::ScalarType dtype,
                         const Configuration& configuration, const Schedule& schedule, int size) {
  if (!configuration.keeps_bits()) {
    return train_on_threads(subject, dtype, configuration, schedule, size);
  }
  return outcome_of_ddp(subject, dtype, configuration.precision, schedule, size);
}

}  // namespace tessera::internal::testing
