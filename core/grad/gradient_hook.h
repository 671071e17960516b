#pragma once

#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Receives the gradients of an engine's parameters as soon as autograd has computed them. Called
/// on the thread that runs backward.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  /// Called before autograd accumulates into parameter `index`. Must clear the `.grad` that users
  /// see, because autograd would add to it.
  virtual void before_gradient(size_t index) = 0;

  /// Called when a gradient of parameter `index` is complete; it is moved out of `.grad`. It may be
  /// sparse, and its strides may differ from the parameter's.
  virtual void gradient(size_t index, at::Tensor gradient) = 0;
};

/// While it lives, sends each gradient that reaches the parameter's AccumulateGrad node to a sink,
/// and keeps `.grad` undefined. If `.grad` is undefined, autograd passes the new gradient on
/// without a copy. Exceptions from the sink reach the caller of backward().
class GradientHook {
 public:
  /// `parameter` is a leaf that requires grad; `sink` must outlive the hook.
  GradientHook(const at::Tensor& parameter, size_t index, GradientSink& sink);
  ~GradientHook();
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

  /// Returns true if `parameter` already has a post-accumulate hook, set by an engine or other
  /// code. A parameter can have only one.
  static bool is_taken(const at::Tensor& parameter);

 private:
  struct Target;

  at::Tensor parameter_;
  std::shared_ptr<Target> target_;
  /// The parameter's AccumulateGrad node. Autograd holds it weakly; without this reference the
  /// pre-hook would be lost between steps.
  std::shared_ptr<void> accumulator_;
};

}  // namespace tessera::internal
