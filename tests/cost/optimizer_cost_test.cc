#include <memory>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/elementwise.h"
#include "tessera/optim/algorithm/algorithm.h"
#include "tessera/optimizer_plan.h"
#include "tessera/tests/cost/allocations.h"
#include "tessera/torch_elementwise.h"

namespace tessera::internal::testing {
namespace {

TEST(OptimizerCost, KnownNumbersOfAUsersOptimizerAreAskedForWithoutTheHeap) {
  const torch::optim::AdamWOptions options(0.02);
  const auto others = torch::optim::AdamWOptions(0.02).weight_decay(0.5);
  const OptimizerPlan plan = elementwise<torch::optim::AdamW>(options);
  const Algorithm& algorithm = plan.algorithm();
  const auto asked = [&algorithm](const torch::optim::OptimizerOptions& of) {
    const int64_t before = heap_allocations();
    EXPECT_TRUE(algorithm.problems_of("defaults", of).empty());
    EXPECT_FALSE(algorithm.states[2].is_used_by(of));
    return heap_allocations() - before;
  };
  EXPECT_EQ(asked(options), 0);
  EXPECT_GT(asked(others), 0) << "numbers that nobody has asked for yet";
  EXPECT_EQ(asked(others), 0);
  EXPECT_EQ(asked(options), 0);
}

}  // namespace
}  // namespace tessera::internal::testing
