#include "tessera/bench/macro/train/trainer.h"

#include <utility>
#include <vector>

#include "tessera/tessera.h"

namespace bench {
namespace {

constexpr double kRate = 3e-4, kDecay = 0.1;

class Local final : public Trainer {
 public:
  explicit Local(Task task) : task_(std::move(task)), parameters_(task_.model->parameters()) {
    for (const at::Tensor& parameter : parameters_) {
      first_.push_back(at::zeros_like(parameter));
      second_.push_back(at::zeros_like(parameter));
      steps_.push_back(at::zeros({}, at::kFloat));
    }
  }

  double step(const Batch& batch) override {
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    const at::Tensor loss = task_.loss(batch);
    loss.backward();
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters_, gradients, first_, second_, /*max_exp_avg_sqs=*/{}, steps_,
                      kRate, /*beta1=*/0.9, /*beta2=*/0.999, kDecay, /*eps=*/1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
    return loss.item<double>();
  }

 private:
  Task task_;
  std::vector<at::Tensor> parameters_, first_, second_, steps_;
};

class Sharded final : public Trainer {
 public:
  Sharded(Task task, const tessera::Options& options,
          const std::shared_ptr<tessera::ProcessGroup>& world)
      : task_(std::move(task)),
        engine_(tessera::parallelize(
            task_.model, torch::optim::AdamWOptions(kRate).weight_decay(kDecay), options, world)) {}

  double step(const Batch& batch) override {
    const at::Tensor loss = task_.loss(batch);
    loss.backward();
    engine_->step();
    return loss.item<double>();
  }

  void write_trace(const std::string& path) override {
    if (engine_->trace() != nullptr) {
      tessera::write_trace(engine_->group(), *engine_->trace(), path);
    }
  }

 private:
  Task task_;
  std::unique_ptr<tessera::Engine> engine_;
};

}  // namespace

std::unique_ptr<Trainer> make_trainer(const std::string& strategy, Task task, bool trace,
                                      const std::shared_ptr<tessera::ProcessGroup>& world) {
  if (strategy == "local") return std::make_unique<Local>(std::move(task));
  tessera::Options options{.trace = trace};
  const bool splits = strategy.starts_with("zero3");
  if (splits) options.wrap = task.wrap;  // an error elsewhere
  const std::string name = strategy.substr(0, strategy.find('-'));
  const std::string variant = strategy.substr(name.size());
  if (variant == "-keep") options.reshard_after_forward = 1;
  options.optimizer_in_backward = variant == "-in-backward";
  std::string problem;
  TORCH_CHECK(
      (variant.empty() || (variant == "-keep" && splits) || options.optimizer_in_backward) &&
          AbslParseFlag(name, &options.strategy, &problem),
      "[bench] --strategy: got '", strategy,
      "', expected local, ddp, zero1, zero2, zero3, zero3-keep, zero2-in-backward or "
      "zero3-in-backward");
  return std::make_unique<Sharded>(std::move(task), options, world);
}

}  // namespace bench
