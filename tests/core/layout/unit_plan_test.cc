#include "tessera/unit_plan.h"

#include <functional>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/layout/parameter.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using testing::parameter;

ParameterTable example_table() {
  return ParameterTable({{"a", parameter({10, 7})},
                         {"frozen", at::zeros({5})},
                         {"b", parameter({3})},
                         {"c", parameter({65}, c10::kDouble)}});
}

std::string refusal_of(std::vector<UnitPlan::Membership> units) {
  const ParameterTable table = example_table();
  try {
    const UnitPlan plan(table, std::move(units), 2);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(UnitPlan, GivesEveryTrainableParameterAPlace) {
  const ParameterTable table = example_table();
  const UnitPlan plan(table, {{"bucket 0", {3}}, {"bucket 1", {2, 0}}}, 3);
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].name, "bucket 0");
  EXPECT_EQ(plan[0].layout.dtype(), c10::kDouble);
  EXPECT_EQ(plan[1].parameters, (std::vector<size_t>{2, 0}));
  EXPECT_FALSE(plan.has_place(1));
  EXPECT_FALSE(plan.has_place(4));
  EXPECT_THROW(plan.place(1), c10::Error);
  for (size_t index : {0u, 2u, 3u}) {
    ASSERT_TRUE(plan.has_place(index));
    const UnitPlan::Place place = plan.place(index);
    EXPECT_EQ(plan[place.unit].parameters[place.position], index);
    EXPECT_EQ(plan[place.unit].layout.parameter_range(place.position).numel,
              table[index].tensor.numel());
  }
  // bucket 0: 65 doubles -> 128 -> 192. bucket 1: 3 -> 64, 70 -> 128: 192 floats.
  EXPECT_EQ(plan.numel(), 192 + 192);
  EXPECT_EQ(plan.bytes(), 192 * 8 + 192 * 4);
  EXPECT_EQ(std::distance(plan.begin(), plan.end()), 2);
}

TEST(UnitPlan, LinesTellApartWhatRanksMustAgreeOn) {
  const ParameterTable table = example_table();
  const UnitPlan plan(table, {{"bucket 0", {3}}, {"bucket 1", {2, 0}}}, 3);
  EXPECT_THAT(
      plan.lines(table),
      ::testing::ElementsAre("unit 'bucket 0': Double numel 192 slices 3 parameters 'c'",
                             "unit 'bucket 1': Float numel 192 slices 3 parameters 'b' 'a'"));
  const UnitPlan swapped(table, {{"bucket 0", {3}}, {"bucket 1", {0, 2}}}, 3);
  EXPECT_NE(plan.lines(table), swapped.lines(table));
  const UnitPlan sliced(table, {{"bucket 0", {3}}, {"bucket 1", {2, 0}}}, 1);
  EXPECT_NE(plan.lines(table), sliced.lines(table));
}

TEST(UnitPlan, AModelWithoutTrainableParametersHasNoUnits) {
  const ParameterTable table({{"frozen", at::zeros({5})}});
  const UnitPlan plan(table, {}, 2);
  EXPECT_EQ(plan.size(), 0u);
  EXPECT_EQ(plan.bytes(), 0);
  EXPECT_TRUE(plan.lines(table).empty());
}

TEST(UnitPlanNegativeControl, EveryWrongListIsCaught) {
  EXPECT_EQ(refusal_of({{"u", {0, 2}}, {"v", {3}}}), "nothing was thrown");
  EXPECT_THAT(refusal_of({{"u", {0}}, {"v", {3}}}), HasSubstr("parameter 'b' is in no unit"));
  EXPECT_THAT(refusal_of({{"u", {0, 2}}, {"v", {3}}, {"w", {2}}}),
              HasSubstr("parameter 'b' is listed twice, the second time in unit 'w'"));
  EXPECT_THAT(refusal_of({{"u", {0, 1, 2}}, {"v", {3}}}),
              HasSubstr("unit 'u' lists the frozen parameter 'frozen'"));
  EXPECT_THAT(refusal_of({{"u", {0, 2, 3}}}), HasSubstr("unit 'u' mixes dtypes at parameter 'c'"));
  EXPECT_THAT(refusal_of({{"u", {0, 2}}, {"v", {3}}, {"w", {}}}), HasSubstr("unit 'w' is empty"));
  EXPECT_THAT(refusal_of({{"u", {0, 2, 9}}, {"v", {3}}}),
              HasSubstr("unit 'u' lists parameter 9 of 4"));
}

}  // namespace
}  // namespace tessera::internal
