// What the step and users see of the reduced gradients; see reducer.cc for how they come.
#include <utility>

#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/core/reduce/reducer.h"
#include "tessera/core/step/grad_norm.h"

namespace tessera::internal {

at::Tensor Reducer::gradient(size_t unit) {
  const at::Tensor& value = reduced_[unit].value();
  const at::ScalarType master = plan_[unit].precision.master;
  if (!value.defined() || value.scalar_type() == master) return value;
  const at::NoGradGuard no_grad;
  return scratch_.acquire(value.numel(), master).copy_(value);
}

/// What norms count of `unit`; undefined if there is nothing.
at::Tensor Reducer::counted(size_t unit) {
  const UnitPrecision& precision = plan_[unit].precision;
  // What is finite may overflow in narrower masters; wider ones take the same values.
  const bool is_narrowed = c10::elementSize(precision.master) < c10::elementSize(precision.reduce);
  return is_narrowed ? gradient(unit) : reduced_[unit].value();
}

void Reducer::add_to(GradientNorms& norms) {
  for (size_t unit = 0; unit < units_; ++unit) {
    const at::Tensor value = counted(unit);
    if (!value.defined()) continue;
    norms.add(plan_[unit], slices_.atom(plan_[unit].layout), value, kept(unit).begin);
  }
}

ExactSum Reducer::squares(size_t unit) {
  ExactSum sum;
  const at::Tensor value = counted(unit);
  if (!value.defined()) return sum;
  for (Segment segment : plan_[unit].layout.segments(slices_.atom(plan_[unit].layout))) {
    segment.buffer_offset -= kept(unit).begin;
    add_squares(value, segment, sum);
  }
  return sum;
}

std::vector<GradientView> Reducer::gradient_views() const {
  std::vector<GradientView> views(table_.size());
  for (size_t i = 0; i < views.size(); ++i) {
    if (!plan_.has_place(i) || plan_.place(i).unit >= units_) continue;
    const UnitPlan::Place place = plan_.place(i);
    const PlannedUnit& unit = plan_[place.unit];
    const at::Tensor& whole = reduced_[place.unit].whole();
    if (is_consumed_) {
      views[i].obstacle = "was applied in backward (Options::optimizer_in_backward)";
    } else if (!whole.defined()) {
      views[i].obstacle = "is sharded over ranks";
    } else if (whole.scalar_type() != unit.precision.parameters) {
      views[i].obstacle = absl::StrCat("is kept in ", c10::toString(unit.precision.reduce),
                                       " (Precision::reduce), which .grad "
                                       "of a parameter in ",
                                       c10::toString(unit.precision.parameters), " cannot be");
    } else {
      views[i].whole =
          view_like(whole, unit.layout.parameter_range(place.position), table_[i].tensor);
    }
  }
  return views;
}

}  // namespace tessera::internal
