#include "tessera/zero/step/unit_update.h"

namespace tessera::internal {

void update_unit(const UnitPlan& plan, size_t unit, const at::Tensor& gradient,
                 const std::vector<uint8_t>& used, double scale, HostOptimizer& optimizer,
                 ParameterStore& store) {
  if (!plan.is_used(unit, used)) return;
  optimizer.update(unit, gradient, plan[unit].parameters, used, scale);
  store.masters().store(unit, store.flat());
}

}  // namespace tessera::internal
