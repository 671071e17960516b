#include "tessera/core/layout/storage_holders.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The reasons against training `tensors` in one unit, in `precision`.
std::vector<std::string> storage_problems(std::vector<NamedTensor> tensors,
                                          Precision precision = {}) {
  std::vector<size_t> members;
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].tensor.requires_grad_();
    members.push_back(i);
  }
  const ParameterTable table(std::move(tensors));
  const UnitPlan plan(table, {{"unit", members}}, 1, precision);
  return alias_problems(table, plan, precision);
}

TEST(StorageHolders, WhatFillsItsStorageMayHaveAliases) {
  const at::Tensor parameter = at::ones({3, 2});
  const std::vector<at::Tensor> aliases = {parameter.t(), parameter.detach(), parameter[1]};
  EXPECT_THAT(storage_problems({{"w", parameter}}), IsEmpty());
}

TEST(StorageHolders, WhatIsAPartMayNot) {
  const at::Tensor whole = at::ones({8});
  // Without autograd, which would keep `whole` alive for the parameter.
  const at::Tensor part = whole.data().narrow(0, 0, 6);
  EXPECT_THAT(storage_problems({{"w", part.detach()}}),
              ElementsAre(AllOf(HasSubstr("[layout] parameter 'w': got "),
                                HasSubstr("a part of a larger or overlapping memory"))));
}

TEST(StorageHolders, PartsOfWhatNobodyElseHoldsAreMovedApart) {
  at::Tensor vector = at::ones({10});
  at::Tensor first = at::empty({0});
  at::Tensor second = at::empty({0});
  first.set_data(vector.slice(0, 0, 6).view({2, 3}).data());
  second.set_data(vector.slice(0, 6, 10).data());
  EXPECT_EQ(storage_problems({{"first", first}, {"second", second}}).size(), 2u)
      << "whoever holds the vector would keep the old values";
  vector.reset();
  EXPECT_THAT(storage_problems({{"first", first}, {"second", second}}), IsEmpty());
}

TEST(StorageHolders, ABaseThatOnlyAutogradKeepsCountsForItsViews) {
  at::Tensor base = at::ones({3, 4});
  const at::Tensor query = base[0];
  const at::Tensor key = base.narrow(0, 1, 2);
  ASSERT_TRUE(query.is_view() && key.is_view());
  EXPECT_EQ(storage_problems({{"query", query}, {"key", key}}).size(), 2u);
  base.reset();
  EXPECT_THAT(storage_problems({{"query", query}, {"key", key}}), IsEmpty());
  EXPECT_EQ(storage_problems({{"query", query}}).size(), 1u) << "the key is nobody's parameter now";
}

TEST(StorageHolders, WhatIsConvertedMayHaveNone) {
  const Precision half{.parameters = at::kBFloat16};
  const at::Tensor parameter = at::ones({3, 2});
  EXPECT_THAT(storage_problems({{"w", parameter}}, half), IsEmpty());
  const at::Tensor view = parameter.t();
  EXPECT_THAT(storage_problems({{"w", parameter}}, half),
              ElementsAre(AllOf(HasSubstr("parameter 'w': got 1 more holder(s)"),
                                HasSubstr("it is converted from Float to BFloat16"))));
}

TEST(StorageHolders, OneTensorAloneCountsAllWhoLookAtItsMemory) {
  at::Tensor base = at::ones({1});
  const at::Tensor expanded = base.expand({4});
  EXPECT_GT(StorageHolders({expanded}).other_holders(expanded), 0);
  EXPECT_EQ(StorageHolders({expanded, base}).other_holders(expanded), 0);
  base.reset();
  EXPECT_EQ(StorageHolders({expanded}).other_holders(expanded), 0);
}

TEST(StorageHolders, AnAliasLiesInAParameterAltogether) {
  const at::Tensor memory = at::ones({10});
  const ParameterTable table({{"w", memory.narrow(0, 2, 6).detach()}});
  EXPECT_TRUE(is_alias(table, memory.narrow(0, 2, 6)));
  EXPECT_TRUE(is_alias(table, memory.narrow(0, 3, 2)));
  EXPECT_FALSE(is_alias(table, memory)) << "it has more than the parameter";
  EXPECT_FALSE(is_alias(table, memory.narrow(0, 0, 2)));
  EXPECT_FALSE(is_alias(table, memory.clone()));
  EXPECT_FALSE(is_alias(table, at::ones({2}).to_sparse()));
}

}  // namespace
}  // namespace tessera::internal
