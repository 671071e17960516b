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
/// clip_grad_norm_ would after a division by the loss scale. The norms are those that ranks agree
/// on in the vote; what follows is elementwise. Used by one thread.
class GradientClip {
 public:
  /// For the optimizer's `groups`; references must outlive it. Throws c10::Error for a group in
  /// Options::max_grad_norm_by_group that there is not.
  GradientClip(const ResolvedOptions& options, const ParameterGroups& groups,
               const ParameterTable& table, const UnitPlan& plan, const SliceMap& slices);
  GradientClip(const GradientClip&) = delete;
  GradientClip& operator=(const GradientClip&) = delete;

  /// How many norms the ranks exchange.
  size_t norms() const { return clipping_.max_norms.size(); }
  /// Those of a step whose gradients are multiplied with `loss_scale`; empty so far.
  GradientNorms begin(double loss_scale) const { return GradientNorms(clipping_, loss_scale); }

  /// The ranks have agreed on `norms`, without the loss scale. Returns what gradients must be
  /// multiplied with after clip().
  double decide(std::span<const double> norms, double loss_scale);

  /// Clips `gradient`, what this rank keeps of `unit`, in place, but for the factor of decide().
  void clip(size_t unit, const at::Tensor& gradient) const;

 private:
  const UnitPlan& plan_;
  const SliceMap& slices_;
  Clipping clipping_;
  double loss_scale_ = 1.0;
  std::vector<double> factors_;  // by group; empty where none is below 1 or there is one for all
};

/// What is wrong with Options::max_grad_norm_by_group for an optimizer whose groups are called
/// `names`; "" if nothing. Local.
std::string problem_of_group_norms(const Options& options, std::span<const std::string> names);

}  // namespace tessera::internal
