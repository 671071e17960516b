#pragma once

#include "tessera/core/layout/unit_plan.h"
#include "tessera/core/memory/memory_meter.h"
#include "tessera/core/strategy.h"

namespace tessera {

/// Persistent bytes per rank that training with AdamW keeps, from the layout alone: what
/// docs/strategies.md calls the memory formula, padding included. P stands for a unit's padded
/// bytes, N for the world:
///   parameters: P / p.   optimizer: 2 P / o.
///   gradients:  P / o where reduced gradients have a buffer of their own. They have none under
///   zero1 (g = 1, o = N > 1) with one
///               micro-step, where the reduced slice stays in the landing buffer; ddp (g = o = 1):
///               P.
///   landing:    P under zero1, which keeps the whole gradient. Elsewhere landing buffers are
///   pooled, come and go, and are not part of the formula (0 here).
/// control is 0 here: it is small and depends on the number of parameters, not on P.
/// `micro_steps` >= 1: backwards per step.
MemoryBytes memory_formula(const UnitPlan& plan, Degrees degrees, int micro_steps);

}  // namespace tessera
