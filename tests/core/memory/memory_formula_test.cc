#include "tessera/core/memory/memory_formula.h"

#include <string>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

MemoryBytes bytes_of(int64_t parameters, int64_t gradients, int64_t optimizer, int64_t landing) {
  MemoryBytes bytes;
  bytes[MemoryClass::kParameters] = parameters;
  bytes[MemoryClass::kGradients] = gradients;
  bytes[MemoryClass::kOptimizer] = optimizer;
  bytes[MemoryClass::kLanding] = landing;
  return bytes;
}

/// For a world of 3: 1000 fp32 elements pad to 1024, with slices to 1152 (4608 bytes); 10 fp64
/// elements pad to 64, with slices to 192 (1536 bytes). P = 6144 bytes.
UnitPlan example_plan(int slices) {
  const ParameterTable table({{"a", at::zeros({1000}).requires_grad_()},
                              {"frozen", at::zeros({1 << 20})},
                              {"b", at::zeros({10}, at::kDouble).requires_grad_()}});
  return UnitPlan(table, {{"bucket 0", {2}}, {"bucket 1", {0}}}, slices);
}

TEST(MemoryFormula, RowsOfTheTableByHand) {
  const UnitPlan plan = example_plan(3);
  ASSERT_EQ(plan.bytes(), 6144);
  for (int micro_steps : {1, 2, 5}) {
    SCOPED_TRACE(micro_steps);
    EXPECT_EQ(memory_formula(plan, {1, 1, 1}, micro_steps), bytes_of(6144, 6144, 12288, 0))
        << "ddp";
    EXPECT_EQ(memory_formula(plan, {1, 3, 3}, micro_steps), bytes_of(6144, 2048, 4096, 0))
        << "zero2";
    EXPECT_EQ(memory_formula(plan, {3, 3, 3}, micro_steps), bytes_of(2048, 2048, 4096, 0))
        << "zero3";
  }
  EXPECT_EQ(memory_formula(plan, {1, 1, 3}, 1), bytes_of(6144, 0, 4096, 6144)) << "zero1";
  EXPECT_EQ(memory_formula(plan, {1, 1, 3}, 2), bytes_of(6144, 2048, 4096, 6144)) << "zero1, k = 2";
}

TEST(MemoryFormula, AtWorldOneAllStrategiesAreOne) {
  const UnitPlan plan = example_plan(1);
  ASSERT_EQ(plan.bytes(), 1024 * 4 + 64 * 8);
  EXPECT_EQ(memory_formula(plan, {1, 1, 1}, 1), bytes_of(4608, 4608, 9216, 0));
}

TEST(MemoryFormula, TotalsAreTheTextbookOnesWithoutPadding) {
  // 64 * 4 * 3 elements in one parameter leave no padding at a world of 4: a = 4 bytes each.
  const ParameterTable table({{"w", at::zeros({768}).requires_grad_()}});
  const UnitPlan plan(table, {{"bucket 0", {0}}}, 4);
  const int64_t p = 768 * 4;
  ASSERT_EQ(plan.bytes(), p);
  EXPECT_EQ(memory_formula(plan, {1, 1, 1}, 1).total(), 4 * p);
  EXPECT_EQ(memory_formula(plan, {1, 1, 4}, 1).total(), 2 * p + 2 * p / 4);
  EXPECT_EQ(memory_formula(plan, {1, 4, 4}, 1).total(), p + 3 * p / 4);
  EXPECT_EQ(memory_formula(plan, {4, 4, 4}, 1).total(), 4 * p / 4);
}

TEST(MemoryFormula, NothingTrainableNeedsNothing) {
  const ParameterTable table({{"frozen", at::zeros({5})}});
  EXPECT_EQ(memory_formula(UnitPlan(table, {}, 2), {1, 2, 2}, 3), MemoryBytes{});
}

TEST(MemoryFormulaNegativeControl, RowsDifferAndWrongArgumentsAreRefused) {
  const UnitPlan plan = example_plan(3);
  EXPECT_NE(memory_formula(plan, {1, 1, 3}, 1), memory_formula(plan, {1, 1, 3}, 2));
  EXPECT_NE(memory_formula(plan, {1, 1, 3}, 1), memory_formula(plan, {1, 3, 3}, 1));
  EXPECT_NE(memory_formula(plan, {1, 3, 3}, 1), memory_formula(example_plan(2), {1, 2, 2}, 1));
  const auto message_of = [&](Degrees degrees, int micro_steps) -> std::string {
    try {
      memory_formula(plan, degrees, micro_steps);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message_of({1, 0, 3}, 1),
              testing::HasSubstr("[memory] degrees: got 1 | 0 | 3, expected at least 1 each"));
  EXPECT_THAT(message_of({1, 1, 3}, 0),
              testing::HasSubstr("[memory] micro_steps: got 0, expected at least 1"));
}

}  // namespace
}  // namespace tessera
