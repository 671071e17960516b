#pragma once

#include <memory>
#include <utility>

#include <c10/util/accumulate.h>

#include "tessera/optim/algorithm/element_update.h"
#include "tessera/optim/algorithm/whole_update.h"
#include "tessera/optimizer_form.h"

namespace tessera::internal {

/// Updates whole parameters by a torch::optim::Optimizer, which is made for one step: Note [A
/// user's optimizer] in optimizer_update.h.
class OptimizerWholeUpdate final : public WholeUpdate {
 public:
  explicit OptimizerWholeUpdate(std::shared_ptr<const ErasedForm> form) : form_(std::move(form)) {}

  Needs needs() const override { return Needs::kValues; }
  /// Returns the number of elements, because the cost of the user's code is unknown. This balances
  /// the memory of states, too.
  int64_t cost(at::IntArrayRef sizes) const override { return c10::multiply_integers(sizes); }
  /// Returns the number of elements, because the scratch memory holds the gathered gradient.
  int64_t scratch_numel(at::IntArrayRef sizes) const override {
    return c10::multiply_integers(sizes);
  }
  /// Throws what run_optimizer_step() throws.
  void update(const Options& options, const Owned& owned) const override;
  void apply(const Options& options, const Whole& whole, float* values, const float* result,
             int64_t numel) const override;
  void apply(const Options& options, const Whole& whole, double* values, const double* result,
             int64_t numel) const override;

 private:
  std::shared_ptr<const ErasedForm> form_;
};

/// Makes the ElementUpdate for OptimizerWholeUpdate, for a table of `parameters` parameters. It
/// writes the scaled gradient as the direction.
std::unique_ptr<ElementUpdate> make_gradient_copy(size_t parameters);

}  // namespace tessera::internal
