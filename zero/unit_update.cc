#include "tessera/zero/unit_update.h"

namespace tessera {

void update_unit(const UnitPlan& plan, size_t unit, const at::Tensor& gradient,
                 const std::vector<uint8_t>& used, double scale, HostOptimizer& optimizer,
                 ParameterStore& store) {
  if (!plan.is_used(unit, used)) return;
  optimizer.update(unit, gradient, plan[unit].parameters, used, scale);
  store.masters().store(unit, store.flat());
}

void update_units(const UnitPlan& plan, Reducer& reducer, double scale, HostOptimizer& optimizer,
                  ParameterStore& store) {
  for (size_t unit = 0; unit < plan.trainable_size(); ++unit) {
    update_unit(plan, unit, reducer.gradient(unit), reducer.used(), scale, optimizer, store);
  }
}

}  // namespace tessera
