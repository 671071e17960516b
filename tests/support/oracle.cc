#include "tessera/tests/support/oracle.h"

#include <cmath>
#include <memory>
#include <unordered_set>
#include <utility>

#include <torch/torch.h>

namespace tessera::internal::testing {
namespace {

std::vector<Batch> batches_of_ranks(const Subject& subject, const Schedule& schedule, int step,
                                    int micro_step, int size) {
  std::vector<Batch> batches;
  batches.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    batches.push_back(batch_of(subject, at::kDouble, schedule, {step, rank}, micro_step));
  }
  return batches;
}

Batch concatenate(const std::vector<Batch>& batches) {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
  for (const Batch& batch : batches) {
    inputs.push_back(batch.input);
    targets.push_back(batch.target);
  }
  return {.input = at::cat(inputs), .target = at::cat(targets)};
}

/// The mean over ranks of the ranks' losses.
at::Tensor mean_loss(const Subject& subject, Net& net, const Schedule& schedule, int step,
                     int micro_step, int size) {
  const std::vector<Batch> batches = batches_of_ranks(subject, schedule, step, micro_step, size);
  if (subject.concatenates) {
    return loss_of(net, concatenate(batches), {step, /*rank=*/0}, schedule);
  }
  at::Tensor sum;
  for (int rank = 0; rank < size; ++rank) {
    const at::Tensor loss =
        loss_of(net, batches[static_cast<size_t>(rank)], {step, rank}, schedule);
    sum = sum.defined() ? sum + loss : loss;
  }
  return sum / static_cast<double>(size);
}

}  // namespace

std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& model) {
  std::vector<at::Tensor> distinct;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : model.parameters()) {
    if (!parameter.requires_grad()) continue;
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) distinct.push_back(parameter);
  }
  return distinct;
}

torch::optim::AdamW plain_optimizer(const torch::nn::Module& model, const OptimizerPlan& plan) {
  std::vector<std::vector<at::Tensor>> members(plan.groups.size() + 1);
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& entry : model.named_parameters()) {
    const at::Tensor& parameter = entry.value();
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    size_t group = 0;
    while (group < plan.groups.size() && !plan.groups[group].selects(entry.key(), parameter))
      ++group;
    members[group].push_back(parameter);
  }
  const std::vector<torch::optim::OptimizerParamGroup> groups(members.begin(), members.end());
  torch::optim::AdamW optimizer(groups, plan.defaults.as<torch::optim::AdamWOptions>());
  // Set here, because LibTorch 2.15's constructor merges a group's options with the defaults.
  for (size_t group = 0; group < plan.groups.size(); ++group) {
    optimizer.param_groups()[group].set_options(plan.groups[group].options.clone());
  }
  return optimizer;
}

Outcome oracle(const Subject& subject, const Schedule& schedule, int size) {
  const std::shared_ptr<Net> net =
      prepare(subject.make_for_oracle ? subject.make_for_oracle() : subject.make(), at::kDouble,
              kModelSeed);
  torch::optim::AdamW optimizer = plain_optimizer(*net, make_plan(*net));
  const std::vector<at::Tensor> parameters = distinct_parameters(*net);

  Outcome outcome;
  for (int step = 0; step < schedule.steps; ++step) {
    optimizer.zero_grad();
    for (int micro = 0; micro < schedule.micro_steps; ++micro) {
      const at::Tensor loss = mean_loss(subject, *net, schedule, step, micro, size);
      loss.backward();
      outcome.losses.push_back(loss.item<double>());
    }
    outcome.grad_norms.push_back(
        torch::nn::utils::clip_grad_norm_(parameters, schedule.max_grad_norm));
    optimizer.step();
  }
  outcome.parameters = copy_parameters(*net);
  return outcome;
}

std::map<std::string, at::Tensor> train_plainly(
    const Subject& subject, at::ScalarType dtype, const Schedule& schedule, int size,
    const std::function<PlainStep(const std::vector<at::Tensor>& parameters)>& make) {
  const std::shared_ptr<Net> net = prepare(subject.make(), dtype, kModelSeed);
  const std::vector<at::Tensor> parameters = distinct_parameters(*net);
  const PlainStep update = make(parameters);
  for (int step = 0; step < schedule.steps; ++step) {
    net->zero_grad();
    for (int micro = 0; micro < schedule.micro_steps; ++micro) {
      for (int rank = 0; rank < size; ++rank) {
        const Moment moment{.step = step, .rank = rank};
        const Batch batch = batch_of(subject, dtype, schedule, moment, micro);
        (loss_of(*net, batch, moment, schedule) / static_cast<double>(size)).backward();
      }
    }
    if (std::isfinite(schedule.max_grad_norm)) {
      torch::nn::utils::clip_grad_norm_(parameters, schedule.max_grad_norm);
    }
    update();
  }
  return copy_parameters(*net);
}

}  // namespace tessera::internal::testing
