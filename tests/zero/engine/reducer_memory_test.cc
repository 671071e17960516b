#include <memory>

#include <gtest/gtest.h>

#include "tessera/memory_formula.h"
#include "tessera/tests/core/reduce/reduction_rig.h"
#include "tessera/tests/support/rank_threads.h"

// A reducer without an engine holds what the formula predicts, under degrees of no named strategy.
namespace tessera::internal::testing {
namespace {

using ReducerMemoryAt = ::testing::TestWithParam<int>;
INSTANTIATE_TEST_SUITE_P(World, ReducerMemoryAt, ::testing::Values(1, 2, 3, 4, 6));

TEST_P(ReducerMemoryAt, IsThatOfTheFormulaAndNoneForFrozenUnits) {
  for (const Degrees& degrees : all_degrees(GetParam())) {
    SCOPED_TRACE(to_string(degrees));
    run_ranks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) {
      ReductionRig rig(std::move(group), degrees);
      for (const int micro_steps : {1, 2}) {
        for (int micro_step = 0; micro_step < micro_steps; ++micro_step) {
          rig.micro_step(exact_gradients(rig, rig.group->rank(), micro_step));
        }
        rig.reducer.finish();
        rig.reducer.gradient(0);
        const MemoryBytes formula = memory_formula(
            rig.plan, {.degrees = degrees,
                       .micro_steps = micro_steps,
                       .is_split = degrees.parameters > 1,
                       .ranks_after_forward = degrees.parameters > 1 ? degrees.parameters : 0});
        const MemoryBytes measured = rig.meter.now();
        EXPECT_EQ(measured[MemoryClass::kGradients], formula[MemoryClass::kGradients]);
        if (degrees.gradients == 1 && degrees.optimizer > 1) {
          EXPECT_EQ(measured[MemoryClass::kGradientBuffers],
                    formula[MemoryClass::kGradientBuffers]);
        }
        rig.reducer.clear();
      }
    });
  }
}

}  // namespace
}  // namespace tessera::internal::testing
