#include "tessera/core/memory/memory_formula.h"

#include <c10/util/Exception.h>

namespace tessera {

MemoryBytes memory_formula(const UnitPlan& plan, Degrees degrees, int micro_steps) {
  TORCH_CHECK(degrees.parameters >= 1 && degrees.gradients >= 1 && degrees.optimizer >= 1,
              "[memory] degrees: got ", degrees.parameters, " | ", degrees.gradients, " | ",
              degrees.optimizer, ", expected at least 1 each");
  TORCH_CHECK(micro_steps >= 1, "[memory] micro_steps: got ", micro_steps, ", expected at least 1");
  const bool whole_gradient_lands = degrees.gradients == 1 && degrees.optimizer > 1;
  MemoryBytes bytes;
  for (const PlannedUnit& unit : plan) {
    const int64_t unit_bytes = unit.layout.bytes();
    bytes[MemoryClass::kParameters] += unit_bytes / degrees.parameters;
    bytes[MemoryClass::kOptimizer] += 2 * unit_bytes / degrees.optimizer;
    if (!whole_gradient_lands || micro_steps > 1) {
      bytes[MemoryClass::kGradients] += unit_bytes / degrees.optimizer;
    }
    if (whole_gradient_lands) bytes[MemoryClass::kLanding] += unit_bytes;
  }
  return bytes;
}

}  // namespace tessera
