#include "tessera/bench/macro/train/trainer.h"

#include <string_view>
#include <utility>
#include <vector>

#include <ATen/DeviceAccelerator.h>

#include "tessera/tessera.h"

namespace bench {
namespace {

constexpr double kRate = 3e-4, kDecay = 0.1;

class Local final : public Trainer {
 public:
  Local(Task task, c10::ScalarType dtype) : task_(std::move(task)) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : task_.model->parameters()) {
      masters_.push_back(dtype == at::kFloat ? parameter : parameter.detach().clone());
      first_.push_back(at::zeros_like(parameter));
      second_.push_back(at::zeros_like(parameter));
      steps_.push_back(at::zeros({}, parameter.options().dtype(at::kFloat)));
    }
    if (dtype != at::kFloat) task_.model->to(dtype);
    parameters_ = task_.model->parameters();
    if (dtype != at::kFloat) {
      for (const at::Tensor& master : masters_) wide_gradients_.push_back(at::empty_like(master));
    }
  }

  at::Tensor step(const Batch& batch) override {
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    const at::Tensor loss = task_.loss(batch);
    loss.backward();
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    if (!wide_gradients_.empty()) {
      at::_foreach_copy_(wide_gradients_, gradients);
      gradients = wide_gradients_;
    }
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(masters_, gradients, first_, second_, /*max_exp_avg_sqs=*/{}, steps_, kRate,
                      /*beta1=*/0.9, /*beta2=*/0.999, kDecay, /*eps=*/1e-8, /*amsgrad=*/false,
                      /*maximize=*/false);
    if (!wide_gradients_.empty()) at::_foreach_copy_(parameters_, masters_);
    return loss.detach();
  }

  void finish() override {
    const at::Device device = parameters_.front().device();
    if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
  }

 private:
  Task task_;
  std::vector<at::Tensor> parameters_, masters_, wide_gradients_, first_, second_, steps_;
};

class Sharded final : public Trainer {
 public:
  Sharded(Task task, const tessera::Options& options,
          const std::shared_ptr<tessera::ProcessGroup>& world,
          std::shared_ptr<tessera::CommHook> hook, bool is_weighted)
      : task_(std::move(task)),
        device_(world->device()),
        engine_(tessera::parallelize(
            task_.model, torch::optim::AdamWOptions(kRate).weight_decay(kDecay), options, world)),
        is_graph_(options.cuda_graphs),
        is_offloaded_(options.offload != tessera::Offload::kNone),
        is_weighted_(is_weighted) {
    if (hook != nullptr) engine_->register_comm_hook(std::move(hook));
  }

  at::Tensor step(const Batch& batch) override {
    const at::Tensor loss = is_graph_ ? captured(batch) : plain(batch);
    engine_->step();
    return loss;
  }

  tessera::Engine* engine() override { return engine_.get(); }

  void finish() override {
    engine_->wait();
    if (!device_.is_cpu()) at::accelerator::synchronizeDevice(device_.index());
  }

  int64_t formula_bytes() const override {
    if (is_offloaded_) return -1;  // the formula also counts the host's memory
    return tessera::predicted_peak_memory(*engine_, /*micro_steps=*/1).total() +
           engine_->memory().now()[tessera::MemoryClass::kControl];
  }

  void write_trace(const std::string& path) override {
    if (tessera::trace_of(*engine_) != nullptr) {
      tessera::write_trace(*engine_, path);
    }
  }

 private:
  at::Tensor plain(const Batch& batch) {
    const at::Tensor loss = task_.loss(batch);
    if (is_weighted_) {
      engine_->backward(loss, {.weight = static_cast<double>(batch.target.size(0))});
    } else {
      loss.backward();
    }
    return loss.detach();
  }

  /// A graph reads and writes the same tensors each time.
  at::Tensor captured(const Batch& batch) {
    if (!still_.input.defined()) {
      still_ = {at::empty_like(batch.input), at::empty_like(batch.target)};
      loss_ = at::zeros({}, at::TensorOptions(device_).dtype(at::kFloat));
    }
    still_.input.copy_(batch.input, /*non_blocking=*/true);
    still_.target.copy_(batch.target, /*non_blocking=*/true);
    engine_->micro_step([&] { loss_.copy_(plain(still_)); });
    return loss_.clone();
  }

  Task task_;
  const at::Device device_;
  std::unique_ptr<tessera::Engine> engine_;
  const bool is_graph_, is_offloaded_, is_weighted_;
  Batch still_;
  at::Tensor loss_;
};

/// Returns the part after the strategy's name: "-apart" of "zero3-apart", "" of "zero3".
std::string variant_of(const std::string& strategy) {
  const size_t dash = strategy.find('-');
  return dash == std::string::npos ? "" : strategy.substr(dash);
}

/// Returns the engine's options without the wrap policy. Throws for an unknown strategy.
tessera::Options options_of(const TrainerOptions& trainer_options) {
  tessera::Options options{.trace = trainer_options.trace};
  const std::string name = trainer_options.strategy.substr(0, trainer_options.strategy.find('-'));
  const std::string variant = variant_of(trainer_options.strategy);
  std::string problem;
  const bool is_known = AbslParseFlag(name, &options.strategy, &problem);
  const bool splits = is_known && options.strategy == tessera::Strategy::kZero3;
  const bool can_share = is_known && options.strategy != tessera::Strategy::kDdp;
  const bool is_form =
      variant == "-weights" || variant == "-noop" || variant == "-bf16" || variant == "-powersgd";
  TORCH_CHECK(is_known && (variant.empty() || variant == "-in-backward" || variant == "-offload" ||
                           (variant == "-keep" && splits) || (variant == "-apart" && can_share) ||
                           (is_form && options.strategy == tessera::Strategy::kDdp)),
              "[bench] --strategy: got '", trainer_options.strategy,
              "', expected local, ddp, ddp-weights, ddp-noop, ddp-bf16, ddp-powersgd, zero1, "
              "zero2, zero3, zero3-keep, zero1-apart, zero2-apart, "
              "zero3-apart, zero2-in-backward, zero3-in-backward or, on a GPU, ddp-offload, "
              "zero1-offload, zero2-offload or zero3-offload");
  if (variant == "-keep") options.reshard_after_forward = 1;
  if (variant == "-apart") options.share_parameters = false;
  options.optimizer_in_backward = variant == "-in-backward";
  if (variant == "-offload") {
    options.offload = splits ? tessera::Offload::kParameters : tessera::Offload::kOptimizer;
  }
  if (trainer_options.dtype != at::kFloat) options.precision.parameters = trainer_options.dtype;
  if (variant == "-bf16") options.precision.communication = at::kBFloat16;
  options.cuda_graphs = trainer_options.graph;
  return options;
}

}  // namespace

std::unique_ptr<Trainer> make_trainer(const TrainerOptions& trainer_options, Task task,
                                      const std::shared_ptr<tessera::ProcessGroup>& world) {
  if (trainer_options.strategy == "local") {
    TORCH_CHECK(!trainer_options.graph,
                "[bench] --graph: got it with strategy local, expected one of the "
                "engine's; leave it out");
    return std::make_unique<Local>(std::move(task), trainer_options.dtype);
  }
  tessera::Options options = options_of(trainer_options);
  if (options.strategy == tessera::Strategy::kZero3) options.wrap = task.wrap;  // others refuse it
  const std::string variant = variant_of(trainer_options.strategy);
  std::shared_ptr<tessera::CommHook> hook;
  if (variant == "-noop") hook = tessera::noop_hook();
  if (variant == "-powersgd") hook = tessera::power_sgd_hook({.start_power_sgd_iter = 2});
  return std::make_unique<Sharded>(std::move(task), options, world, std::move(hook),
                                   /*is_weighted=*/variant == "-weights");
}

}  // namespace bench
