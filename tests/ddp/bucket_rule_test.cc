#include "tessera/ddp/bucket_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using Members = std::vector<std::vector<size_t>>;

at::Tensor floats(int64_t numel) { return at::zeros({numel}).set_requires_grad(true); }
at::Tensor doubles(int64_t numel) {
  return at::zeros({numel}, at::kDouble).set_requires_grad(true);
}

ParameterTable table_of(std::vector<at::Tensor> tensors) {
  std::vector<NamedTensor> named;
  for (at::Tensor& tensor : tensors) {
    named.push_back({"p" + std::to_string(named.size()), std::move(tensor)});
  }
  return ParameterTable(std::move(named));
}

Members members(const ParameterTable& table, const std::vector<int64_t>& caps) {
  Members members;
  for (const auto& bucket : bucket_membership(table, caps)) {
    EXPECT_EQ(bucket.name, "bucket " + std::to_string(members.size()));
    members.push_back(bucket.parameters);
  }
  return members;
}

TEST(BucketRule, RunsBackwardsAndClosesWithTheParameterThatFills) {
  // 100 floats are 400 bytes. The first bucket closes at 400, the others at 1000 (three).
  const ParameterTable table =
      table_of({floats(100), floats(100), floats(100), floats(100), floats(100), floats(100)});
  EXPECT_EQ(members(table, {400, 1000}), (Members{{5}, {4, 3, 2}, {1, 0}}));
  EXPECT_EQ(members(table, {401, 1000}), (Members{{5, 4}, {3, 2, 1}, {0}}));
  EXPECT_EQ(members(table, {1 << 20}), (Members{{5, 4, 3, 2, 1, 0}}));
}

TEST(BucketRule, HasACapForEachOfTheFirstBuckets) {
  const ParameterTable table = table_of(
      {floats(100), floats(100), floats(100), floats(100), floats(100), floats(100), floats(100)});
  EXPECT_EQ(members(table, {1, 800, 1}), (Members{{6}, {5, 4}, {3}, {2}, {1}, {0}}));
  EXPECT_EQ(members(table, {1000, 1, 800}), (Members{{6, 5, 4}, {3}, {2, 1}, {0}}));
}

TEST(BucketRule, AHugeParameterClosesItsBucketAtOnce) {
  const ParameterTable table = table_of({floats(10), floats(100000), floats(10), floats(10)});
  EXPECT_EQ(members(table, {1024}), (Members{{3, 2, 1}, {0}}));
  const ParameterTable last = table_of({floats(10), floats(100000)});
  EXPECT_EQ(members(last, {1024}), (Members{{1}, {0}}));
}

TEST(BucketRule, NeverMixesDtypes) {
  const ParameterTable table = table_of({floats(100), doubles(50), floats(100), doubles(50)});
  EXPECT_EQ(members(table, {1 << 20}), (Members{{3, 1}, {2, 0}}));
  // The small first bucket is the first of all, not of each dtype.
  EXPECT_EQ(members(table, {400, 800}), (Members{{3}, {2, 0}, {1}}));
}

TEST(BucketRule, LeavesFrozenParametersOut) {
  const ParameterTable table = table_of({floats(10), at::zeros({10}), floats(10)});
  EXPECT_EQ(members(table, {1024}), (Members{{2, 0}}));
  EXPECT_EQ(members(table_of({at::zeros({3})}), {1024}), Members{});
  EXPECT_EQ(members(table_of({}), {1024}), Members{});
}

TEST(BucketRule, TakesEmptyAndScalarParameters) {
  const ParameterTable table =
      table_of({floats(0), at::zeros({}).set_requires_grad(true), floats(0)});
  EXPECT_EQ(members(table, {1024}), (Members{{2, 1, 0}}));
}

}  // namespace
}  // namespace tessera::internal
