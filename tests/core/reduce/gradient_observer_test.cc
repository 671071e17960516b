#include "tessera/core/reduce/gradient_observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/reduce/reducer.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kWorld = 3;

/// Records its calls.
struct ConsumingObserver final : GradientObserver {
  bool consumes() const override { return true; }
  void before_consuming(size_t unit) override {
    calls.push_back("reducing " + std::to_string(unit));
  }
  void consume(size_t unit, const at::Tensor& gradient, const ExactSum& squares) override {
    calls.push_back("reduced " + std::to_string(unit));
    gradients.push_back(gradient.clone());
    EXPECT_EQ(squares.value(), gradient.to(at::kDouble).square().sum().item<double>());
  }
  std::vector<std::string> calls;
  std::vector<at::Tensor> gradients;
};

/// Two units of two parameters each under zero2.
struct ObserverRig {
  explicit ObserverRig(std::shared_ptr<ProcessGroup> world)
      : group(std::move(world)),
        table({{"a", leaf()}, {"b", leaf()}, {"c", leaf()}, {"d", leaf()}}),
        plan(table, {{"ab", {0, 1}}, {"cd", {2, 3}}}, kWorld),
        slices({1, kWorld, kWorld}, kWorld, group->rank()),
        reducer(*group, table, plan, slices,
                {.on_release = BufferPool::OnRelease::kPoison, .observer = &observer}, meter,
                history,
                /*trace=*/nullptr) {}
  static at::Tensor leaf() { return at::zeros({70}).set_requires_grad(true); }

  void receive(size_t index) { reducer.receive(index, at::full({70}, group->rank() + 1.0)); }

  std::shared_ptr<ProcessGroup> group;
  MemoryMeter meter;
  RollingHash history;
  ConsumingObserver observer;
  ParameterTable table;
  UnitPlan plan;
  SliceMap slices;
  Reducer reducer;
};

void on_ranks(const std::function<void(ObserverRig&)>& body) {
  run_ranks(kWorld, [&](std::shared_ptr<ProcessGroup> world) {
    ObserverRig rig(std::move(world));
    body(rig);
  });
}

TEST(GradientObserver, GetsCompleteUnitsAndTheOthersStay) {
  on_ranks([](ObserverRig& rig) {
    rig.reducer.begin_micro_step(Reducer::Mode::kReduce);
    rig.receive(0);
    rig.receive(1);
    if (rig.group->rank() == 1) rig.receive(2);
    rig.reducer.end_micro_step();
    EXPECT_THAT(rig.observer.calls, ElementsAre("reducing 0", "reduced 0"));
    EXPECT_EQ(rig.observer.gradients[0].numel(), rig.plan[0].layout.numel() / kWorld);
    EXPECT_FALSE(rig.reducer.gradient(0).defined()) << "it has been used up";
    ASSERT_TRUE(rig.reducer.gradient(1).defined());
    EXPECT_THAT(rig.reducer.used(), ElementsAre(1, 1, 1, 0));
    // The mean when only one rank had a gradient.
    const float first = rig.reducer.gradient(1)[0].item<float>();
    if (rig.reducer.kept(1).begin == 0) {
      EXPECT_FLOAT_EQ(first, 2.0F / kWorld);
    }
    EXPECT_EQ(rig.meter.now()[MemoryClass::kGradients], rig.plan[1].layout.bytes() / kWorld);
  });
}

TEST(GradientObserver, MeetsNoSecondGradient) {
  on_ranks([](ObserverRig& rig) {
    rig.reducer.begin_micro_step(Reducer::Mode::kReduce);
    rig.receive(2);
    EXPECT_THAT([&] { rig.receive(2); },
                ThrowsMessage<c10::Error>(HasSubstr(
                    "[grad] 'c': got a second gradient within one backward, expected one")));
  });
}

}  // namespace
}  // namespace tessera::internal::testing
