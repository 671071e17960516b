#include "tessera/core/reduce/tree_accumulator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace tessera::internal {
namespace {

at::Tensor term(int number) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(number + 1));
  return at::randn({1001}, generator, at::kFloat);
}

at::Tensor tree_of_terms(int first, int count) {
  if (count == 1) return term(first);
  return tree_of_terms(first, count / 2) + tree_of_terms(first + count / 2, count / 2);
}

TEST(TreeAccumulator, AddsAsATreeInTheMemoryThatTheFormulaSays) {
  TreeAccumulator accumulator;
  int64_t made = 0;
  const auto allocate = [&made] {
    ++made;
    return at::full({1001}, 1e30);
  };
  for (const int terms : {1, 2, 4, 8, 16, 32}) {
    for (const bool is_again : {false, true}) {
      accumulator.clear();
      const at::Tensor most = term(0);
      at::Tensor in_order = term(0);
      for (int i = 1; i < terms; ++i) {
        accumulator.add(most, term(i), allocate);
        in_order = in_order + term(i);
      }
      EXPECT_EQ(accumulator.used(), 0u) << "complete";
      EXPECT_TRUE(at::equal(most, tree_of_terms(0, terms))) << terms << " " << is_again;
      EXPECT_EQ(at::equal(most, in_order), terms <= 2) << "the control";
      EXPECT_EQ(made + 1, partial_sums_of(terms)) << "memory is kept for the next sum";
    }
  }
}

TEST(TreeAccumulator, KeepsPartialSumsLikeBits) {
  TreeAccumulator accumulator;
  const at::Tensor most = term(0);
  const auto allocate = [] { return at::empty({1001}); };
  for (int i = 1; i < 7; ++i) accumulator.add(most, term(i), allocate);
  ASSERT_EQ(accumulator.used(), 2u);  // 7 = 4 + 2 + 1
  EXPECT_TRUE(at::equal(most, tree_of_terms(0, 4)));
  EXPECT_TRUE(at::equal(accumulator.partial_sums()[0], tree_of_terms(4, 2)));
  EXPECT_TRUE(at::equal(accumulator.partial_sums()[1], term(6)));
}

TEST(TreeAccumulator, MostPartialSumsOfOddNumbersOfTerms) {
  EXPECT_EQ(partial_sums_of(3), 2);
  EXPECT_EQ(partial_sums_of(5), 3);
  EXPECT_EQ(partial_sums_of(7), 3);
}

}  // namespace
}  // namespace tessera::internal
