// What the comparisons of reducer_rows_test.cc must notice.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/ddp/reduction_rig.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::testing {
namespace {

/// Gives each rank the slice of its neighbour, or forgets to divide.
class BrokenReductions final : public ForwardingGroup {
 public:
  enum class Break : uint8_t { kNeighboursSlice, kNoDivision };
  BrokenReductions(std::shared_ptr<ProcessGroup> inner, Break what)
      : ForwardingGroup(std::move(inner)), break_(what) {}

  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op,
                                   std::string_view tag) override {
    return inner_->all_reduce(tensor, broken(op), tag);
  }
  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       ReduceOp op, std::string_view tag, int slice) override {
    if (break_ == Break::kNoDivision) {
      return inner_->reduce_scatter(output, input, broken(op), tag, slice);
    }
    const at::Tensor other = at::empty_like(output);
    const int own = slice == kOwnRank ? rank() : slice;
    inner_->reduce_scatter(other, input, op, tag, (own + 1) % size())->wait();
    output.copy_(other);
    return completed_work();
  }
  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag) override {
    return inner_->all_gather(output, input, tag);
  }
  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root,
                                  std::string_view tag) override {
    return inner_->broadcast(tensor, root, tag);
  }
  void barrier(std::string_view tag) override { inner_->barrier(tag); }
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override {
    auto inner = inner_->subgroup(ranks, name);
    if (inner == nullptr) return nullptr;
    return std::make_shared<BrokenReductions>(std::move(inner), break_);
  }

 private:
  ReduceOp broken(ReduceOp op) const {
    return break_ == Break::kNoDivision && op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  }

  Break break_;
};

bool is_right(const Degrees& row, BrokenReductions::Break what) {
  std::atomic<bool> is_right = true;
  run_ranks(4, [&](std::shared_ptr<ProcessGroup> world) {
    ReductionRig rig(std::make_shared<BrokenReductions>(std::move(world), what), row);
    rig.micro_step(exact_gradients(rig, rig.group->rank(), 0));
    rig.reducer.finish();
    const std::vector<at::Tensor> means = rank_order_means(rig, 1, exact_gradients);
    for (size_t unit = 0; unit < rig.plan.trainable_size(); ++unit) {
      if (!at::equal(rig.reducer.gradient(unit), rig.kept(unit, means))) is_right = false;
    }
  });
  return is_right;
}

TEST(RowControls, WrongSlicesAreNoticed) {
  for (const Degrees& row : all_degrees(4)) {
    EXPECT_EQ(is_right(row, BrokenReductions::Break::kNeighboursSlice), row.optimizer == 1)
        << to_string(row);
  }
}

TEST(RowControls, AMissingDivisionIsNoticed) {
  for (const Degrees& row : all_degrees(4)) {
    // Partial sums are divided by the reducer, not by the group.
    EXPECT_EQ(is_right(row, BrokenReductions::Break::kNoDivision), !sums_in_rank_order(row))
        << to_string(row);
  }
}

}  // namespace
}  // namespace tessera::testing
