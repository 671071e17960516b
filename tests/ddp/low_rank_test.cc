#include "tessera/ddp/low_rank.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

namespace tessera::internal {
namespace {

at::Tensor drawn(at::IntArrayRef sizes, at::ScalarType dtype = at::kDouble) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(5), dtype);
}

TEST(Orthonormalize, MakesRowsOrthonormalAndKeepsWhatTheySpan) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 1e-13;
    for (const int64_t count : {1, 2, 5}) {
      const at::Tensor before = drawn({count, 37}, dtype);
      const at::Tensor rows = before.clone();
      orthonormalize(rows, 0.0);
      EXPECT_TRUE(at::allclose(rows.mm(rows.t()), at::eye(count, dtype), 0, tolerance));
      EXPECT_TRUE(at::allclose(before.mm(rows.t()).mm(rows), before, 0, 10 * tolerance));
    }
  }
}

/// After a single pass of Gram-Schmidt these rows would be far from orthogonal.
TEST(Orthonormalize, IsOrthogonalWhereRowsAlmostDependOnEachOther) {
  at::Tensor rows = drawn({3, 37});
  rows[1] = rows[0] + 1e-9 * rows[1];
  rows[2] = rows[0] - 1e-9 * rows[2];
  orthonormalize(rows, 0.0);
  EXPECT_TRUE(at::allclose(rows.mm(rows.t()), at::eye(3, at::kDouble), 0, 1e-12));
}

TEST(Orthonormalize, GivesZerosForRowsThatDependOnOthersAndForZeros) {
  at::Tensor rows = drawn({4, 8});
  rows[1] = 3 * rows[0];
  rows[2].zero_();
  orthonormalize(rows, 0.0);
  EXPECT_EQ(rows[1].abs().max().item<double>(), 0.0);
  EXPECT_EQ(rows[2].abs().max().item<double>(), 0.0);
  EXPECT_NEAR(rows[3].norm().item<double>(), 1.0, 1e-13);
}

TEST(Orthonormalize, DividesByTheNormAndEpsilon) {
  const at::Tensor rows = at::full({1, 4}, 2.0, at::kDouble);
  orthonormalize(rows, 4.0);
  EXPECT_TRUE(at::equal(rows, at::full({1, 4}, 0.25, at::kDouble)));
}

TEST(Expand, IsTheProductAndLeavesWhatItLost) {
  for (const int64_t columns : {1, 7, 300}) {
    for (const int64_t rank : {1, 3}) {
      const at::Tensor left = drawn({rank, 5});
      const at::Tensor right = drawn({rank, columns});
      const at::Tensor before = drawn({5, columns});
      const at::Tensor matrix = before.clone();
      const at::Tensor error = at::full({5, columns}, NAN, at::kDouble);
      expand(left, right, matrix, error, 0.5);
      EXPECT_TRUE(at::allclose(matrix, left.t().mm(right), 1e-13, 1e-13));
      EXPECT_TRUE(at::equal(error, before - 0.5 * matrix));
      const at::Tensor alone = before.clone();
      expand(left, right, alone, {}, 0.5);
      EXPECT_TRUE(at::equal(alone, matrix));
    }
  }
}

}  // namespace
}  // namespace tessera::internal
