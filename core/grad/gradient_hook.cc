#include "tessera/core/grad/gradient_hook.h"

#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace tessera::internal {

/// Connects the hooks with the sink. An autograd graph may keep the AccumulateGrad node, and so the
/// pre-hook and this object, after the GradientHook is destroyed; `sink` is null from then on.
struct GradientHook::Target {
  size_t index;
  GradientSink* sink;

  struct Before : torch::autograd::FunctionPreHook {
    explicit Before(std::shared_ptr<Target> to) : target(std::move(to)) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& gradients) override {
      if (target->sink != nullptr) target->sink->before_gradient(target->index);
      return gradients;
    }
    std::shared_ptr<Target> target;
  };

  struct After : torch::autograd::PostAccumulateGradHook {
    explicit After(std::shared_ptr<Target> to) : target(std::move(to)) {}
    void operator()(const torch::autograd::Variable& parameter) override {
      if (target->sink == nullptr) return;
      at::Tensor gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
      if (!gradient.defined()) return;  // a function returned an undefined gradient
      target->sink->gradient(target->index, std::move(gradient));
    }
    std::shared_ptr<Target> target;
  };
};

GradientHook::GradientHook(const at::Tensor& parameter, size_t index, GradientSink& sink)
    : parameter_(parameter), target_(std::make_shared<Target>(Target{index, &sink})) {
  // A shared_ptr in LibTorch 2.11, an intrusive_ptr in 2.15.
  auto accumulator = torch::autograd::impl::grad_accumulator(parameter_);
  accumulator->add_pre_hook(std::make_unique<Target::Before>(target_));
  accumulator_ = std::make_shared<decltype(accumulator)>(std::move(accumulator));
  torch::autograd::impl::set_post_acc_grad_hooks(parameter_,
                                                 std::make_unique<Target::After>(target_));
}

GradientHook::~GradientHook() {
  target_->sink = nullptr;
  torch::autograd::impl::post_acc_grad_hooks(parameter_).reset();
}

bool GradientHook::is_taken(const at::Tensor& parameter) {
  return torch::autograd::impl::get_autograd_meta(parameter) != nullptr &&
         torch::autograd::impl::post_acc_grad_hooks(parameter) != nullptr;
}

}  // namespace tessera::internal
