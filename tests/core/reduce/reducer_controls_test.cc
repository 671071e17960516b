// Faults that the comparisons of reducer_configurations_test.cc must notice.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/core/reduce/reduction_rig.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {
namespace {

/// Gives each rank its neighbour's slice, or does not divide.
class BrokenReductions final : public ForwardingGroup {
 public:
  enum class Break : uint8_t { kNeighboursSlice, kNoDivision };
  BrokenReductions(std::shared_ptr<ProcessGroup> inner, Break what)
      : ForwardingGroup(std::move(inner)), break_(what) {}

  std::shared_ptr<Work> run(const Collective& collective) override {
    Collective broken = collective;
    if (break_ == Break::kNoDivision) {
      if (broken.reduce == ReduceOp::kAvg) broken.reduce = ReduceOp::kSum;
      return inner_->run(broken);
    }
    if (collective.op != Op::kReduceScatter) return inner_->run(collective);
    broken.output = at::empty_like(collective.output);
    broken.slice = (collective.slice + 1) % size();
    inner_->run(broken)->wait();
    at::Tensor(collective.output).copy_(broken.output);
    return completed_work();
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<BrokenReductions>(std::move(inner), break_);
  }

 private:
  Break break_;
};

bool is_right(const Degrees& configuration, BrokenReductions::Break what) {
  std::atomic<bool> is_right = true;
  run_ranks(4, [&](std::shared_ptr<ProcessGroup> world) {
    ReductionRig rig(std::make_shared<BrokenReductions>(std::move(world), what), configuration);
    rig.micro_step(exact_gradients(rig, rig.group->rank(), 0));
    rig.reducer.finish();
    const std::vector<at::Tensor> means = rank_order_means(rig, 1, exact_gradients);
    for (size_t unit = 0; unit < rig.plan.trainable_size(); ++unit) {
      if (!at::equal(rig.reducer.gradient(unit), rig.kept(unit, means))) is_right = false;
    }
  });
  return is_right;
}

TEST(ConfigurationControls, WrongSlicesAreNoticed) {
  for (const Degrees& configuration : all_degrees(4)) {
    EXPECT_EQ(is_right(configuration, BrokenReductions::Break::kNeighboursSlice),
              configuration.optimizer == 1)
        << to_string(configuration);
  }
}

TEST(ConfigurationControls, AMissingDivisionIsNoticed) {
  for (const Degrees& configuration : all_degrees(4)) {
    // The reducer divides partial sums, not the group.
    EXPECT_EQ(is_right(configuration, BrokenReductions::Break::kNoDivision),
              !sums_in_rank_order(configuration))
        << to_string(configuration);
  }
}

}  // namespace
}  // namespace tessera::internal::testing
