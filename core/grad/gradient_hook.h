#pragma once

#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Receives the gradients of an engine's parameters as autograd finishes them. Called on the thread
/// that runs backward.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  /// Called before autograd accumulates into parameter `index`. Must take away what `.grad` shows
  /// the user, or autograd would add to it.
  virtual void before_gradient(size_t index) = 0;

  /// A gradient of parameter `index` is complete; it is moved out of `.grad`. May be sparse; its
  /// strides may differ from the parameter's.
  virtual void gradient(size_t index, at::Tensor gradient) = 0;
};

/// Connects one parameter to a sink for as long as it lives: each gradient that reaches the
/// parameter's AccumulateGrad node goes to the sink, and `.grad` stays undefined. With `.grad`
/// undefined autograd hands over the fresh gradient without a copy. Exceptions of the sink reach
/// the caller of backward().
class GradientHook {
 public:
  /// `parameter` is a leaf that requires grad; `sink` must outlive the hook.
  GradientHook(const at::Tensor& parameter, size_t index, GradientSink& sink);
  ~GradientHook();
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

  /// Returns true if `parameter`'s only post-accumulate hook is in use, by an engine or by somebody
  /// else.
  static bool is_taken(const at::Tensor& parameter);

 private:
  struct Target;

  at::Tensor parameter_;
  std::shared_ptr<Target> target_;
  /// Autograd holds the node weakly; without this the pre-hook would be lost between steps.
  std::shared_ptr<void> accumulator_;
};

}  // namespace tessera::internal
