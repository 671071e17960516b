#include "tessera/zero/step/gradient_clip.h"

#include <algorithm>
#include <cmath>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/step/clip_factor.h"

namespace tessera::internal {
namespace {

Clipping clipping_of(const Options& options, const ParameterGroups& groups, size_t parameters) {
  Clipping clipping{.norm_type = options.grad_norm_type,
                    .max_value = options.max_grad_value,
                    .max_norms = {options.max_grad_norm}};
  if (options.max_grad_norm_by_group.empty()) return clipping;
  clipping.max_norms.clear();
  std::vector<std::string> names;
  for (size_t group = 0; group < groups.size(); ++group) {
    names.push_back(groups.state_name(group));
    const auto found = options.max_grad_norm_by_group.find(names.back());
    clipping.max_norms.push_back(found == options.max_grad_norm_by_group.end() ? Clipping::kNever
                                                                               : found->second);
  }
  const std::string problem = problem_of_group_norms(options, names);
  TORCH_CHECK(problem.empty(), problem);
  for (size_t i = 0; i < parameters; ++i) clipping.group_of.push_back(groups.group_of(i));
  return clipping;
}

}  // namespace

std::string problem_of_group_norms(const Options& options, std::span<const std::string> names) {
  for (const auto& [name, max_norm] : options.max_grad_norm_by_group) {
    if (std::ranges::count(names, name) > 0) continue;
    return absl::StrCat("[options] max_grad_norm_by_group: got group '", name,
                        "', expected a group of the optimizer's (", absl::StrJoin(names, ", "),
                        "); name one of these, or give the OptimizerPlan such a group");
  }
  return "";
}

GradientClip::GradientClip(const ResolvedOptions& options, const ParameterGroups& groups,
                           const ParameterTable& table, const UnitPlan& plan,
                           const SliceMap& slices)
    : plan_(plan), slices_(slices), clipping_(clipping_of(options, groups, table.size())) {}

double GradientClip::decide(std::span<const double> norms, double loss_scale) {
  loss_scale_ = loss_scale;
  factors_.clear();
  if (norms.size() == 1) return clip_factor(norms[0], clipping_.max_norms[0]) / loss_scale;
  bool clips = false;
  for (size_t group = 0; group < norms.size(); ++group) {
    factors_.push_back(clip_factor(norms[group], clipping_.max_norms[group]));
    clips = clips || factors_.back() != 1.0;
  }
  if (!clips) factors_.clear();
  return 1.0 / loss_scale;
}

void GradientClip::clip(size_t unit, const at::Tensor& gradient) const {
  if (!std::isinf(clipping_.max_value)) {
    const double limit = scaled_limit(clipping_.max_value, loss_scale_, gradient.scalar_type());
    gradient.clamp_(-limit, limit);
  }
  if (factors_.empty()) return;
  const FlatLayout& layout = plan_[unit].layout;
  const Range kept = slices_.optimizer(layout);
  for (const Segment& segment : layout.segments(kept)) {
    const double factor = factors_[clipping_.group(plan_[unit].parameters[segment.parameter])];
    if (factor == 1.0) continue;
    gradient.narrow(0, segment.buffer_offset - kept.begin, segment.numel).mul_(factor);
  }
}

}  // namespace tessera::internal
