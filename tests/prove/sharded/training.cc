#include "tessera/tests/prove/sharded/training.h"

#include <csignal>
#include <fstream>
#include <limits>

#include <torch/torch.h>

#include "tessera/tessera.h"
#include "tessera/tests/prove/plain/step_log.h"
#include "tessera/tests/prove/plain/tensor_file.h"

namespace prove {
namespace {

using tessera::Engine;
using tessera::MemoryClass;
using tessera::ProcessGroup;

/// This rank's rows: 22, 21 and 21 of 64 on three ranks.
Batch own_rows(const Batch& all, int rank, int size) {
  const int64_t begin = all.size() * rank / size;
  const int64_t end = all.size() * (rank + 1) / size;
  return all.rows(begin, end - begin);
}

void misbehave(Misuse misuse, ProcessGroup& world, int64_t step) {
  if (!is_moment(world.rank(), step)) return;
  if (misuse == Misuse::kDie) std::raise(SIGKILL);
  if (misuse == Misuse::kOtherCall) world.barrier("what nobody else calls");
  if (misuse == Misuse::kListen) open_port();
}

/// The loss of the whole batch, like the plain program's.
double mean_over_ranks(const at::Tensor& loss, ProcessGroup& world) {
  const at::Tensor mean = loss.detach().to(at::kDouble).reshape({1}).clone();
  world.all_reduce(mean, tessera::ReduceOp::kAvg, "loss")->wait();
  return mean.item<double>();
}

void train_steps(const Task& task, Misuse misuse, Model& model, Engine& engine, ProcessGroup& world,
                 StepLog& log) {
  // The engine averages over ranks, so the weight contains the number of ranks.
  const double weight = static_cast<double>(world.size()) / kRows;
  for (int64_t step = 0; step < kSteps; ++step) {
    const Batch batch = own_rows(task.batch(step), world.rank(), world.size());
    at::Tensor loss = model.loss(batch) * weight;
    misbehave(misuse, world, step);
    const double mean = mean_over_ranks(loss, world);
    if (misuse == Misuse::kNan && is_moment(world.rank(), step)) {
      loss = loss * std::numeric_limits<double>::quiet_NaN();
    }
    loss.backward();
    log.add(mean, engine.step().grad_norm);
  }
}

void write_memory(const Task& task, const Engine& engine, const std::string& path) {
  std::ofstream file(path, std::ios::app);
  const tessera::MemoryBytes held = engine.memory().now();
  const tessera::MemoryBytes predicted = tessera::predicted_memory(engine, /*micro_steps=*/1);
  for (const MemoryClass each :
       {MemoryClass::kParameters, MemoryClass::kGradients, MemoryClass::kOptimizer,
        MemoryClass::kUnshardedParameters, MemoryClass::kRoot, MemoryClass::kGradientBuffers}) {
    const bool is_pooled = each == MemoryClass::kGradientBuffers && predicted[each] == 0;
    if (is_pooled) continue;  // is allocated and freed, within a bound
    file << task.name << ' ' << to_string(each) << ' ' << held[each] << ' ' << predicted[each]
         << '\n';
  }
  TORCH_CHECK(file.good(), "[prove] cannot write ", path);
}

}  // namespace

void train(const Task& task, const Training& training, const std::shared_ptr<ProcessGroup>& world) {
  const std::string stem = training.folder + "/" + task.name;
  const std::string rank = std::to_string(world->rank());
  const bool is_first = world->rank() == 0;
  const auto model = task.make_model();
  const auto control = std::make_shared<ControlSwitch>(ControlSwitch{.control = training.control});
  const auto group =
      control->control == Control::kNone ? world : std::make_shared<ControlGroup>(world, control);
  const auto engine = tessera::parallelize(model, task.optimizer, training.options, group);
  StepLog log(is_first ? stem + ".steps" : "");
  train_steps(task, training.misuse, *model, *engine, *world, log);
  control->is_on = false;
  write_memory(task, *engine, training.folder + "/rank" + rank + ".memory");
  const auto whole = engine->full_parameters();
  write_tensors(stem + (is_first ? ".end" : ".end" + rank), parameters_of(*model));
}

}  // namespace prove
