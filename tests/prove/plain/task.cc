#include "tessera/tests/prove/plain/task.h"

#include <utility>

#include "tessera/tests/prove/plain/hinge_model.h"
#include "tessera/tests/prove/plain/residual_model.h"

namespace prove {
namespace {

using torch::optim::AdamWOptions;

template <typename Made>
Task task_of(std::string name, at::ScalarType dtype, AdamWOptions optimizer) {
  return {.name = std::move(name),
          .dtype = dtype,
          .optimizer = std::move(optimizer),
          .make_untyped_model = [] { return std::make_shared<Made>(); },
          .make_untyped_batch = Made::batch};
}

AdamWOptions usual() { return AdamWOptions(3e-3).weight_decay(0.05); }
AdamWOptions exact() { return AdamWOptions(0.03).weight_decay(0.05).betas({0.5, 0.0}).eps(1.0); }

}  // namespace

std::shared_ptr<Model> Task::make_model() const {
  auto model = make_untyped_model();
  model->to(dtype);
  return model;
}

Batch Task::batch(int64_t step) const {
  Batch batch = make_untyped_batch(step % 4, kRows);
  batch.input = batch.input.to(dtype);
  if (batch.target.is_floating_point()) batch.target = batch.target.to(dtype);
  return batch;
}

const std::vector<Task>& tasks() {
  static const std::vector<Task> all = {
      task_of<ResidualModel>("residual", at::kFloat, usual()),
      task_of<ResidualModel>("residual_double", at::kDouble, usual()),
      task_of<HingeModel>("hinge", at::kFloat, exact()),
  };
  return all;
}

}  // namespace prove
