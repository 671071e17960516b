#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optimizer_form.h"

namespace tessera::internal {

/// Some optimizers, such as LibTorch's Adagrad, fill states in their constructor. Returns the value
/// with which this optimizer fills state number `state` of a parameter; 0 if it does not. The value
/// matters only if a parameter is saved before its first update.
double initial_state(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                     size_t state);

/// Updates elements by a torch::optim::Optimizer.
///
/// Note [A user's optimizer]
/// For each step on each piece of a parameter a new optimizer is made. Its state is put together
/// from what the engine keeps: the named tensors, which the optimizer updates in place or replaces,
/// and the step count. So nothing else can survive a step, and a run that resumes from a
/// checkpoint, with other slices, has everything that this run has. Before the first update there
/// is no state: the optimizer makes it, in its constructor or in its step.
///
/// Pieces are short enough for the cache, and for LibTorch to give most operators one thread.
class OptimizerUpdate final : public ElementUpdate {
 public:
  /// `dtypes`: the dtype of each state of the form; nullopt: the dtype of the values. `parameters`:
  /// the number of parameters in the table.
  OptimizerUpdate(std::shared_ptr<const ErasedForm> form,
                  std::vector<std::optional<at::ScalarType>> dtypes, size_t parameters)
      : form_(std::move(form)), dtypes_(std::move(dtypes)), next_(parameters) {}

  void prepare(size_t parameter, const Options& options, int64_t step,
               double gradient_scale) override {
    next_[parameter] = {&options, step, gradient_scale};
  }
  /// Both throw what run_optimizer_step() throws.
  void apply(size_t parameter, float* values, const float* gradient, std::span<void* const> states,
             int64_t numel) const override;
  void apply(size_t parameter, double* values, const double* gradient,
             std::span<void* const> states, int64_t numel) const override;

 private:
  struct Next {
    const Options* options = nullptr;
    int64_t step = 0;
    double gradient_scale = 1.0;
  };
  template <typename T>
  void apply_in_pieces(const Next& next, T* values, const T* gradient,
                       std::span<void* const> states, int64_t numel) const;

  std::shared_ptr<const ErasedForm> form_;
  std::vector<std::optional<at::ScalarType>> dtypes_;
  std::vector<Next> next_;  // per entry of the table
};

}  // namespace tessera::internal
