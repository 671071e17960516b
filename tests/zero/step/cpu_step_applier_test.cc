#include "tessera/zero/step/cpu_step_applier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/errors.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

/// Throws in its update, in the middle of a step to which all ranks have agreed.
class ThrowingOptimizer final : public CpuOptimizer {
 public:
  explicit ThrowingOptimizer(const ParameterTable& table)
      : CpuOptimizer(table, torch::optim::AdamWOptions(), std::vector<size_t>(table.size(), 0)) {}
  int64_t state_bytes() const override { return 0; }
  const at::Tensor& state(size_t, size_t) const override { throw std::bad_alloc(); }
  at::Tensor state_of(size_t, const Segment&, size_t) const override { throw std::bad_alloc(); }
  std::vector<int64_t> step_counts() const override { return {}; }
  void set_step_counts(std::span<const int64_t>) override {}
  void update(size_t, const at::Tensor&, std::span<const size_t>, std::span<const uint8_t>,
              double) override {
    if (throws) TORCH_CHECK(false, "[optim] update: got no scratch memory, expected some");
  }

  bool throws = false;
};

/// The state of a commit: one parameter in one bucket.
struct Rig {
  Rig(ProcessGroup& world, Degrees degrees)
      : group(world),
        table({{"w", at::ones({40}).set_requires_grad(true)}}),
        plan(table, {{"bucket 0", {0}}}, world.size(), {}),
        slices(degrees, world.size(), world.rank()),
        store(world, table, plan, slices, options, nullptr, nullptr, meter, nullptr),
        failure(world),
        reducer(world, table, plan, slices, {}, meter, history, nullptr) {}

  ProcessGroup& group;
  MemoryMeter meter;
  RollingHash history;
  ParameterTable table;
  UnitPlan plan;
  SliceMap slices;
  ResolvedOptions options;
  ParameterStore store;
  EngineFailure failure;
  Reducer reducer;
};

TEST(CpuStepApplier, AnOptimizerThatThrowsAfterTheVoteEndsAllRanksAtOnce) {
  for (const int size : {2, 3}) {
    for (const int optimizer_ranks : {1, size}) {
      SCOPED_TRACE(::testing::Message() << size << " ranks, 1|1|" << optimizer_ranks);
      std::latch is_over(size);
      run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
        Rig rig(*world, {1, 1, optimizer_ranks});
        auto optimizer = std::make_unique<ThrowingOptimizer>(rig.table);
        optimizer->throws = world->rank() == 1;
        CpuStepApplier applier({.group = *world,
                                .table = rig.table,
                                .plan = rig.plan,
                                .slices = rig.slices,
                                .options = rig.options,
                                .store = rig.store,
                                .failure = rig.failure,
                                .meter = rig.meter,
                                .trace = nullptr},
                               std::move(optimizer));
        rig.reducer.begin_micro_step(Reducer::Mode::kReduce);
        rig.reducer.receive(0, at::ones({40}));
        rig.reducer.end_micro_step();
        StepVote::RankReport rank_report;
        rank_report.step = 1;
        rank_report.backwards = 1;
        applier.optimizer().groups().append_hyper_parameters(rank_report.hyper_parameters);
        const auto go_on = [&] {
          applier.commit(rig.reducer, rank_report);
          world->barrier("whatever comes next");
        };
        if (world->rank() == 1) {
          EXPECT_THAT(go_on, ::testing::ThrowsMessage<c10::Error>(HasSubstr("scratch memory")));
        } else {
          EXPECT_THAT(go_on,
                      ::testing::ThrowsMessage<CommError>(HasSubstr(
                          "rank 1 left step() by an exception after all ranks had agreed to it: "
                          "[optim] update: got no scratch memory, expected some")));
        }
        if (world->rank() == 1) {
          EXPECT_THROW(rig.failure.require_none(), CommError);
        }
        is_over.arrive_and_wait();
      });
    }
  }
}

}  // namespace
}  // namespace tessera::internal::testing
