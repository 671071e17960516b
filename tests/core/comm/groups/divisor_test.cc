#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include <ATen/ATen.h>

#include "tessera/process_group.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"

// Sums divided by a number other than the number of ranks.

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks;

at::Tensor terms_of(int rank, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank + 1));
  return at::randn({12 * 177}, generator, at::kFloat).to(dtype);
}

/// Sums in rank order in the precision of sums, divided and rounded once.
at::Tensor divided_sum(int ranks, double divisor, at::ScalarType dtype) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = terms_of(0, dtype).to(wide);
  for (int rank = 1; rank < ranks; ++rank) sum = sum + terms_of(rank, dtype).to(wide);
  return (sum / divisor).to(dtype);
}

TEST(Divisor, DividesTheSumOnce) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const double divisor : {1.0, 3.0, 0.25, 1.7, 1e-3, 1024.0}) {
        run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
          const at::Tensor right = divided_sum(ranks, divisor, dtype);
          const at::Tensor whole = terms_of(world->rank(), dtype);
          const int64_t numel = whole.numel() / ranks;
          const at::Tensor part = at::empty({numel}, dtype);
          world
              ->reduce_scatter(part, whole, ReduceOp::kAvg, "part", ProcessGroup::kOwnRank, divisor)
              ->wait();
          EXPECT_TRUE(at::equal(part, right.narrow(0, world->rank() * numel, numel)))
              << ranks << " " << dtype << " " << divisor;
          world->all_reduce(whole, ReduceOp::kAvg, "whole", divisor)->wait();
          EXPECT_TRUE(at::equal(whole, right)) << ranks << " " << dtype << " " << divisor;
        });
      }
    }
  }
}

TEST(Divisor, OfZeroIsTheNumberOfRanks) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const at::Tensor given = terms_of(world->rank(), at::kFloat);
    const at::Tensor by_default = terms_of(world->rank(), at::kFloat);
    world->all_reduce(given, ReduceOp::kAvg, "given", 3.0)->wait();
    world->all_reduce(by_default, ReduceOp::kAvg, "by default")->wait();
    EXPECT_TRUE(at::equal(given, by_default));
    const at::Tensor other = terms_of(world->rank(), at::kFloat);
    world->all_reduce(other, ReduceOp::kAvg, "other", 3.5)->wait();
    EXPECT_FALSE(at::equal(other, by_default)) << "the control";
  });
}

TEST(Divisor, ThatCannotBeIsRefused) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    const at::Tensor values = at::ones({4});
    for (const double divisor :
         {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 1e39, 1e-44}) {
      EXPECT_THAT(message_of([&] { world->all_reduce(values, ReduceOp::kAvg, "a", divisor); }),
                  HasSubstr("[comm] all_reduce: got divisor "));
    }
    EXPECT_THAT(message_of([&] { world->all_reduce(values, ReduceOp::kSum, "a", 2.0); }),
                HasSubstr("[comm] all_reduce: got divisor 2 of SUM, expected AVG"));
  });
}

TEST(Divisor, ThatDiffersBetweenRanksIsAnErrorThatNamesBoth) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    const double divisor = world->rank() == 0 ? 2.5 : 3.5;
    const std::string message = message_of(
        [&] { world->all_reduce(at::ones({4}), ReduceOp::kAvg, "bucket", divisor)->wait(); });
    EXPECT_THAT(message, HasSubstr("AVG over 2.5"));
    EXPECT_THAT(message, HasSubstr("AVG over 3.5"));
  });
}

}  // namespace
}  // namespace tessera::internal
