#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/reduce/gradient_view.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// The tensors that users see as `.grad` between backward and step: the whole reduced gradient if
/// there is one, else a stand-in. A stand-in is a tensor of the right shape whose data cannot be
/// read, so that code such as torch::nn::utils::clip_grad_norm_ fails with a message instead of
/// computing with zeros. Users drop a gradient by clearing `.grad` (zero_grad of a torch optimizer
/// or a module); the views detect that.
///
/// A whole gradient exists under ddp where gradients are reduced in the parameter's dtype. 16-bit
/// parameters whose gradients are summed in fp32 (the default) have stand-ins: a rounded copy would
/// cost memory, and what users wrote to it would be lost.
class DotGradViews {
 public:
  /// `views[i]` belongs to parameter i of `table`. `table` must outlive this object.
  DotGradViews(const ParameterTable& table, std::vector<GradientView> views);

  /// Removes the view of parameter `index` so that autograd can accumulate. Throws c10::Error if
  /// `.grad` is another tensor than the view.
  void hide(size_t index);
  void hide_all();
  /// Clears the `.grad` of every trainable parameter, also one that the user has set.
  void drop_all();

  /// Stops expecting the view of parameter `index`, whose `.grad` the user has cleared.
  void forget(size_t index) { shown_[index].reset(); }

  /// What show() makes visible as `.grad`: kReduced is the gradient reduced over ranks; kLocal is
  /// this rank's sum so far (inside no_sync()), which is never readable.
  enum class Content : uint8_t { kReduced, kLocal };
  /// Makes `content` of parameter `index` visible as its `.grad`.
  void show(size_t index, Content content);

  /// Parameters whose view was shown and whose `.grad` the user has cleared since. `all` is set if
  /// at least one view was shown and no view is left.
  struct Cleared {
    std::vector<size_t> parameters;
    bool all = false;
  };
  Cleared cleared() const;

  /// Returns the first trainable parameter whose `.grad` is a tensor other than its view, if any.
  std::optional<size_t> replaced() const;

  /// Returns how often users have written whole gradients in place since hide_all(). If the engine
  /// itself is about to write to gradients that are shown, call this before the write and show()
  /// after it: show() takes the version of each gradient as the new base, so the engine's write
  /// does not count.
  int64_t count_edits();

 private:
  const at::Tensor& stand_in_of(size_t index, Content content);

  const ParameterTable& table_;
  std::vector<GradientView> views_;
  std::vector<at::Tensor> sharded_;  // stand-ins of reduced gradients, made when first shown
  std::vector<at::Tensor> local_;    // stand-ins of local sums, made when first shown
  std::vector<at::Tensor> shown_;    // what `.grad` was set to; undefined if hidden
  std::vector<int64_t> versions_;    // versions of shown_ when edits were last counted
  int64_t edits_ = 0;
};

}  // namespace tessera::internal
