// Fine-tuning with low-rank adapters (LoRA, arXiv:2106.09685): the weights of a trained model are
// frozen, and small factors next to them learn a new task. Then everything is unfrozen.
//
//   tessera-run --standalone --nproc-per-node 2 build/release/bin/lora --strategy zero3
//
// Expected last line, the same for every strategy (digits depend on the number of ranks and the
// machine's arithmetic):
//
//   world 2: loss 0.025606, parameters cac98fac9728e061
#include <cmath>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include <absl/flags/flag.h>

#include "tessera/examples/program/program.h"
#include "tessera/examples/program/time_out_flag.h"
#include "tessera/tessera.h"

ABSL_FLAG(tessera::Strategy, strategy, tessera::Strategy::kDdp, "ddp, zero1, zero2 or zero3");
ABSL_FLAG(int, steps, 150, "steps of each of the two parts, and before them");
ABSL_FLAG(program::TimeOutFlag, timeout, {}, program::kTimeOutHelp);

namespace {

constexpr int64_t kBatch = 96;  // of all ranks together

/// A Linear layer to whose weight the product of two thin matrices is added. The product is zero at
/// first.
struct LoraLinear : torch::nn::Module {
  LoraLinear(int64_t in, int64_t out, int64_t rank = 4)
      : base(register_module("base", torch::nn::Linear(in, out))),
        down(register_parameter("lora_down", torch::randn({rank, in}) / std::sqrt(in))),
        up(register_parameter("lora_up", torch::zeros({out, rank}))) {}
  at::Tensor forward(const at::Tensor& x) { return base(x) + x.matmul(down.t()).matmul(up.t()); }
  torch::nn::Linear base;
  at::Tensor down, up;
};

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(at::relu(middle->forward(at::relu(first->forward(x)))));
  }
  std::shared_ptr<LoraLinear> first = register_module("first", std::make_shared<LoraLinear>(2, 64));
  std::shared_ptr<LoraLinear> middle =
      register_module("middle", std::make_shared<LoraLinear>(64, 61));
  std::shared_ptr<LoraLinear> last = register_module("last", std::make_shared<LoraLinear>(61, 3));
};

bool is_adapter(std::string_view name) { return name.find(".lora_") != std::string_view::npos; }

/// Returns `rank`'s rows of batch number `step`: points on three arms of a spiral, and each point's
/// arm. `turn` rotates the spiral, so each value of `turn` is another task.
std::pair<at::Tensor, at::Tensor> batch_of(int step, double turn, int rank, int world) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
  const at::Tensor along = at::rand({kBatch}, generator, at::kFloat);
  const at::Tensor arm = at::arange(kBatch, at::kLong).remainder(3);
  const at::Tensor angle = along * 4.0 + arm * (2.0 * M_PI / 3.0) + turn +
                           at::randn({kBatch}, generator, at::kFloat) * 0.1;
  const at::Tensor points = at::stack({along * at::cos(angle), along * at::sin(angle)}, 1);
  const int64_t rows = kBatch / world;
  return {points.narrow(0, rank * rows, rows), arm.narrow(0, rank * rows, rows)};
}

at::Tensor loss_of(Net& model, int step, double turn, int rank, int world) {
  const auto [points, arms] = batch_of(step, turn, rank, world);
  return torch::nn::functional::cross_entropy(model.forward(points), arms);
}

/// Trains the base model with plain LibTorch on one rank. A user would load a trained model
/// instead.
void train_base(Net& model, int steps) {
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-3));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(model, step, /*turn=*/0.0, 0, 1).backward();
    optimizer.step();
  }
  model.zero_grad();
}

void fine_tune() {
  const int steps = absl::GetFlag(FLAGS_steps);
  if (steps < 1) throw program::UsageError("--steps: expected 1 or more");
  tessera::ProcessGroupOptions options;
  options.timeout = absl::GetFlag(FLAGS_timeout).timeout;
  auto world = tessera::init_process_group(options);
  torch::manual_seed(1);
  auto model = std::make_shared<Net>();
  if (world->rank() == 0) train_base(*model, steps);  // parallelize() broadcasts it

  // Only adapters are trained, so there are gradients, moments and traffic for them only.
  for (const auto& entry : model->named_parameters()) {
    entry.value().set_requires_grad(is_adapter(entry.key()));
  }
  // The parameter group "base" is used once its parameters are unfrozen.
  tessera::OptimizerPlan plan(torch::optim::AdamWOptions(1e-2),
                              {{"base", [](std::string_view name) { return !is_adapter(name); },
                                torch::optim::AdamWOptions(1e-3).weight_decay(0.01)}});
  auto engine = tessera::parallelize(
      model, plan, {.strategy = absl::GetFlag(FLAGS_strategy), .max_grad_norm = 1.0}, world);

  constexpr double kNewTurn = 0.8;
  const auto mean_loss = [&](int step) {
    const at::NoGradGuard no_grad;
    at::Tensor loss = loss_of(*model, step, kNewTurn, world->rank(), world->size()).view({1});
    world->all_reduce(loss, tessera::ReduceOp::kAvg, "loss")->wait();
    return loss.item<double>();
  };
  const auto train = [&](int begin, int end) {
    for (int step = begin; step < end; ++step) {
      loss_of(*model, step, kNewTurn, world->rank(), world->size()).backward();
      engine->step();
    }
  };
  const auto report = [&](const char* what) {
    const double loss = mean_loss(0);
    const auto bytes = engine->memory().now()[tessera::MemoryClass::kOptimizer];
    if (world->rank() != 0) return;
    std::printf("%-12s loss %.6f, optimizer %ld KiB on rank 0\n", what, loss, bytes / 1024);
  };

  report("base");
  train(0, steps);
  report("adapters");
  engine->set_trainable([](std::string_view) { return true; });  // adapters keep their moments
  train(steps, 2 * steps);
  report("all");

  const double loss = mean_loss(0);
  const uint64_t hash = tessera::parameter_hash(*engine);
  if (world->rank() == 0) {
    std::printf("world %d: loss %.6f, parameters %016lx\n", world->size(), loss, hash);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return program::run({.name = "lora",
                       .summary = "fine-tunes a small classifier: adapters, then all of it.",
                       .examples = {"lora",
                                    "tessera-run --standalone --nproc-per-node 2 "
                                    "lora --strategy zero3"}},
                      argc, argv, fine_tune);
}
