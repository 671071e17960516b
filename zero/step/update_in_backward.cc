#include "tessera/zero/step/update_in_backward.h"

#include <algorithm>
#include <cmath>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/sched/trace_span.h"
#include "tessera/core/step/step_vote.h"

namespace tessera::internal {

// Note [Update in backward]
// The moment of the update. Before the first update of a backward all ranks vote as in step(), on
// the same values: what step() would refuse (another number of steps, other hyper-parameters, a
// parameter written outside modify_parameters()) is refused while nothing has changed. If all
// parameters of a unit have their gradients on this rank, it is certain already that all of them
// are used, and the unit is updated when its reduction is done. Otherwise the unit is updated after
// the all-gather at the end of backward, which says which parameters any rank used. Ranks may
// update a unit at different times; each updates its own slice, with the same result. step() then
// votes, all-gathers the updates and counts the step.
//
// Readers. As soon as this rank takes part in the reduction of a unit, another rank may have the
// sum and write its slice of the parameters, in memory that this rank gathers from or shares.
// Backward does not read the unit again: a parameter's gradient is complete only when every
// operator that used it has gone through backward. So the unit is protected (made unreadable) just
// before the reduction. Any other reader (a detached copy in the graph, a hook, an evaluation
// before step()) then gets an error instead of a mixture. A gather of a protected unit may copy a
// mixture, but nothing can read it.
//
// Non-finite gradients. A NaN on any rank, or an overflow of the mean, makes the sum of squares of
// the slice that holds it non-finite, and that slice is not updated. So no parameter takes such a
// value, but other slices have been updated. The vote of step() tells all ranks, and the engine can
// be used again only after load_state_dict().

UpdateInBackward::UpdateInBackward(const ParameterTable& table, const UnitPlan& plan,
                                   CpuOptimizer& optimizer, ParameterStore& store, Trace* trace)
    : plan_(plan),
      optimizer_(optimizer),
      store_(store),
      trace_(trace),
      all_used_(table.size(), uint8_t{1}),
      is_done_(plan.trainable_size()) {}

void UpdateInBackward::begin() {
  hyper_parameters_.clear();
  optimizer_.groups().append_hyper_parameters(hyper_parameters_);
  has_begun_ = true;
}

void UpdateInBackward::require_committed(const char* call) const {
  TORCH_CHECK(!has_begun_, "[engine] ", call,
              ": called between the first gradient of a backward, which updates parameters "
              "(Options::optimizer_in_backward), and step(), which makes them the same on all "
              "ranks; call engine->step() first");
}

void UpdateInBackward::protect(size_t unit) {
  store_.flat().full(unit).protect(absl::StrCat(
      "[zero] unit '", plan_[unit].name,
      "': backward has updated it (Options::optimizer_in_backward) and other ranks may not be done "
      "with theirs, so its parameters cannot be read before engine->step(), nor by a module that "
      "is used again in this backward (recomputation); call step() first"));
}

void UpdateInBackward::finish(Reducer& reducer) {
  const std::vector<uint8_t>& used = reducer.used();
  for (size_t unit = 0; unit < is_done_.size(); ++unit) {
    if (is_done_[unit] != 0 || !plan_.is_used(unit, used)) continue;
    protect(unit);
    update(unit, reducer.gradient(unit), used, reducer.squares(unit));
  }
}

void UpdateInBackward::update(size_t unit, const at::Tensor& gradient,
                              const std::vector<uint8_t>& used, const ExactSum& squares) {
  const TraceSpan span(trace_, TraceTrack::kOptimizer, plan_[unit].name);
  is_done_[unit] = 1;
  squares_.merge(squares);
  if (!std::isfinite(squares.value())) return;
  optimizer_.update(unit, gradient, plan_[unit].parameters, used, /*gradient_scale=*/1.0);
  store_.masters().store(unit, store_.flat());
}

std::string UpdateInBackward::problem() const {
  if (!has_begun_) return "";
  std::vector<int64_t> present;
  optimizer_.groups().append_hyper_parameters(present);
  const auto [now, then] = std::mismatch(present.begin(), present.end(), hyper_parameters_.begin());
  if (now == present.end()) return "";
  return absl::StrCat("hyper-parameter ",
                      optimizer_.groups().hyper_parameter_names()[now - present.begin()],
                      " was changed after backward had updated with it "
                      "(Options::optimizer_in_backward); set it back, and change it between "
                      "step() and backward");
}

std::string UpdateInBackward::describe(const NonFiniteReport& report) {
  return absl::StrCat(
      describe_gradients(report),
      ". Slices without such values were updated in backward (Options::optimizer_in_backward), so "
      "the parameters are inconsistent; engine->load_state_dict() an earlier state");
}

void UpdateInBackward::end() {
  for (size_t unit = 0; unit < is_done_.size(); ++unit) store_.flat().full(unit).unprotect();
  std::fill(is_done_.begin(), is_done_.end(), uint8_t{0});
  squares_ = ExactSum();
  has_begun_ = false;
}

}  // namespace tessera::internal
