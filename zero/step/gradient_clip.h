#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/options/resolved_options.h"
#include "tessera/core/step/clipping.h"
#include "tessera/core/step/gradient_norms.h"
#include "tessera/optim/plan/parameter_groups.h"
#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// Clips the mean gradients of a step on the host, as torch::nn::utils' clip_grad_value_ and then
/// clip_grad_norm_ would after a division by the loss scale. Ranks agree on the norms in the vote;
/// the rest is elementwise. Used by one thread.
class GradientClip {
 public:
  /// For the optimizer's `groups`; references must outlive it. Throws c10::Error if
  /// Options::max_grad_norm_by_group names an unknown group.
  GradientClip(const ResolvedOptions& options, const ParameterGroups& groups,
               const ParameterTable& table, const UnitPlan& plan, const SliceMap& slices);
  GradientClip(const GradientClip&) = delete;
  GradientClip& operator=(const GradientClip&) = delete;

  /// Returns how many norms the ranks exchange.
  size_t norms() const { return clipping_.max_norms.size(); }
  /// Returns norms to which no gradient has been added yet, for a step whose gradients are
  /// multiplied by `loss_scale`.
  GradientNorms begin(double loss_scale) const { return GradientNorms(clipping_, loss_scale); }

  /// Takes the `norms` that ranks have agreed on, without the loss scale. Returns the factor by
  /// which gradients must be multiplied after clip().
  double decide(std::span<const double> norms, double loss_scale);

  /// Clips `gradient`, this rank's part of the gradient of `unit`, in place. The caller applies the
  /// factor of decide().
  void clip(size_t unit, const at::Tensor& gradient) const;

 private:
  const UnitPlan& plan_;
  const SliceMap& slices_;
  Clipping clipping_;
  double loss_scale_ = 1.0;
  // One factor for each group. Empty if clip() need not multiply: either no factor is below 1, or a
  // single norm covers all groups, and then decide() returns the factor.
  std::vector<double> factors_;
};

/// Returns what is wrong with Options::max_grad_norm_by_group for an optimizer whose groups are
/// called `names`; "" if nothing. Local.
std::string problem_of_group_norms(const Options& options, std::span<const std::string> names);

}  // namespace tessera::internal
