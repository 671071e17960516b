// Every configuration of degrees at worlds of 1, 2, 3, 4 and 6: values, memory and traffic of
// reductions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/core/reduce/reduction_rig.h"
#include "tessera/tests/support/delayed_group.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/trace.h"

namespace tessera::internal::testing {
namespace {

using Mode = Reducer::Mode;
using Words = std::array<int64_t, ExactSum::kWords>;

struct Configuration {
  int world;
  Degrees degrees;
};

std::vector<Configuration> all_configurations() {
  std::vector<Configuration> configurations;
  for (const int world : {1, 2, 3, 4, 6}) {
    for (const Degrees& degrees : all_degrees(world)) configurations.push_back({world, degrees});
  }
  return configurations;
}

std::string name_of(const Configuration& configuration) {
  return "n" + std::to_string(configuration.world) + "_" +
         std::to_string(configuration.degrees.parameters) + "_" +
         std::to_string(configuration.degrees.gradients) + "_" +
         std::to_string(configuration.degrees.optimizer);
}

Words words_of(const ExactSum& sum) {
  Words words;
  sum.store(words);
  return words;
}

class ConfigurationTest : public ::testing::TestWithParam<Configuration> {
 protected:
  const Degrees& configuration() const { return GetParam().degrees; }
  int world() const { return GetParam().world; }
  bool keeps_sums() const { return !sums_in_rank_order(configuration()); }

  void on_ranks(const std::function<void(ReductionRig&)>& body) const {
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      ReductionRig rig(std::move(group), configuration());
      body(rig);
    });
  }
};

void expect_equal(ReductionRig& rig, const std::vector<at::Tensor>& means) {
  for (size_t unit = 0; unit < rig.plan.trainable_size(); ++unit) {
    const at::Tensor kept = rig.reducer.gradient(unit);
    ASSERT_EQ(kept.numel(), rig.reducer.kept(unit).numel);
    EXPECT_TRUE(at::equal(kept, rig.kept(unit, means))) << rig.plan[unit].name;
  }
  EXPECT_EQ(words_of(rig.squares_of_all_ranks()), words_of(rig.squares_of(means)));
}

TEST_P(ConfigurationTest, GivesTheBitsOfTheSumInRankOrder) {
  on_ranks([&](ReductionRig& rig) {
    for (int micro_step = 0; micro_step < 3; ++micro_step) {
      rig.micro_step(random_gradients(rig, rig.group->rank(), micro_step));
    }
    rig.reducer.finish();
    const GradientsOf gradients_of = [](const ReductionRig& r, int rank, int micro_step) {
      return random_gradients(r, rank, micro_step);
    };
    const std::vector<at::Tensor> means = rank_order_means(rig, 3, gradients_of);
    if (!keeps_sums()) {
      expect_equal(rig, means);
      return;
    }
    for (size_t unit = 0; unit < rig.plan.trainable_size(); ++unit) {
      const at::Tensor expected = rig.kept(unit, means);
      const at::Tensor error = (rig.reducer.gradient(unit) - expected).abs();
      // With cancellation, rounding errors are relative to the largest number in the sums.
      EXPECT_LE(error.max().item<float>(), 2e-6F * rig.flat(unit, means).abs().max().item<float>());
    }
  });
}

TEST_P(ConfigurationTest, IsExactWhereSumsAre) {
  on_ranks([](ReductionRig& rig) {
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      rig.micro_step(exact_gradients(rig, rig.group->rank(), micro_step));
    }
    rig.reducer.finish();
    expect_equal(rig, rank_order_means(rig, 2, exact_gradients));
    rig.reducer.finish();  // no effect
    expect_equal(rig, rank_order_means(rig, 2, exact_gradients));
  });
}

TEST_P(ConfigurationTest, GoesOnAfterAStepThatWasRefused) {
  on_ranks([](ReductionRig& rig) {
    rig.micro_step(exact_gradients(rig, rig.group->rank(), 0));
    rig.reducer.finish();
    rig.micro_step(exact_gradients(rig, rig.group->rank(), 1));
    rig.reducer.finish();
    expect_equal(rig, rank_order_means(rig, 2, exact_gradients));
  });
}

TEST_P(ConfigurationTest, AddsLocallyAndReducesOnce) {
  on_ranks([](ReductionRig& rig) {
    rig.micro_step(exact_gradients(rig, rig.group->rank(), 0), Mode::kAddLocally);
    rig.reducer.finish();
    EXPECT_FALSE(rig.reducer.gradient(0).defined());
    rig.micro_step(exact_gradients(rig, rig.group->rank(), 1));
    rig.reducer.finish();
    expect_equal(rig, rank_order_means(rig, 2, exact_gradients));
  });
}

TEST_P(ConfigurationTest, DropsAParameterBeforeAndAfterTheEnd) {
  on_ranks([](ReductionRig& rig) {
    rig.micro_step(exact_gradients(rig, rig.group->rank(), 0));
    rig.reducer.drop(0);
    rig.reducer.finish();
    rig.reducer.drop(2);
    std::vector<at::Tensor> means = rank_order_means(rig, 1, exact_gradients);
    means[0].zero_();
    means[2].zero_();
    expect_equal(rig, means);
    EXPECT_THAT(rig.reducer.used(), ::testing::ElementsAre(0, 1, 0, 1, 0));
  });
}

TEST_P(ConfigurationTest, BeginsAnewAfterClear) {
  on_ranks([](ReductionRig& rig) {
    rig.micro_step(random_gradients(rig, rig.group->rank(), 7));
    rig.reducer.clear();
    rig.reducer.finish();
    EXPECT_FALSE(rig.reducer.gradient(0).defined());
    rig.micro_step(exact_gradients(rig, rig.group->rank(), 0));
    rig.reducer.finish();
    expect_equal(rig, rank_order_means(rig, 1, exact_gradients));
  });
}

TEST_P(ConfigurationTest, AddsTheRoundsOfAParameterUsedAgain) {
  on_ranks([](ReductionRig& rig) {
    rig.reducer.begin_micro_step(Mode::kReduce);
    for (int round = 0; round < 2; ++round) {
      const auto gradients = exact_gradients(rig, rig.group->rank(), round);
      for (size_t i = gradients.size(); i-- > 0;) rig.reducer.receive(i, gradients[i]);
    }
    rig.reducer.end_micro_step();
    rig.reducer.finish();
    expect_equal(rig, rank_order_means(rig, 2, exact_gradients));
  });
}

TEST_P(ConfigurationTest, OneInfinityReachesTheNormOfEveryConfiguration) {
  on_ranks([](ReductionRig& rig) {
    std::vector<at::Tensor> gradients = exact_gradients(rig, rig.group->rank(), 0);
    const bool is_culprit = rig.group->rank() == rig.group->size() - 1;
    if (is_culprit) gradients[3][299] = -std::numeric_limits<float>::infinity();
    rig.micro_step(gradients);
    rig.reducer.finish();
    EXPECT_EQ(rig.reducer.non_finite()[3], is_culprit ? 1 : 0);
    EXPECT_EQ(rig.reducer.non_finite()[2], 0);
    EXPECT_FALSE(std::isfinite(rig.squares_of_all_ranks().value()));
  });
}

TEST_P(ConfigurationTest, AllocatesInTheFirstStepsOnly) {
  on_ranks([](ReductionRig& rig) {
    int64_t allocations = 0;
    for (int step = 0; step < 3; ++step) {
      for (int micro_step = 0; micro_step < 2; ++micro_step) {
        rig.micro_step(exact_gradients(rig, rig.group->rank(), micro_step));
      }
      rig.reducer.finish();
      rig.reducer.gradient(0);
      if (step > 0) {
        EXPECT_EQ(rig.meter.allocations(), allocations);
      }
      allocations = rig.meter.allocations();
      rig.reducer.clear();
    }
  });
}

TEST_P(ConfigurationTest, SendsWhatTheTextbookSays) {
  on_ranks([&](ReductionRig& rig) {
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      rig.micro_step(exact_gradients(rig, rig.group->rank(), micro_step));
    }
    rig.reducer.finish();
    double sent = 0;
    for (const RecordedCall& call : rig.group->recording()->calls()) {
      if (call.tag == "ab" || call.tag == "root" || call.tag == "c") sent += call.sent_bytes;
      EXPECT_NE(call.tag, "frozen");
    }
    const auto share = [](int ranks) { return 1.0 - 1.0 / ranks; };
    double expected = 0;
    for (size_t unit = 0; unit < rig.plan.trainable_size(); ++unit) {
      const auto bytes = static_cast<double>(rig.plan[unit].layout.bytes());
      const double replicas =
          share(world() / configuration().optimizer) * bytes / configuration().optimizer;
      if (configuration().optimizer == 1) {
        expected += 2 * (2 * share(world()) * bytes);
      } else if (keeps_sums()) {
        expected += 2 * (share(configuration().gradients) * bytes);
        expected += share(world() / configuration().gradients) * bytes / configuration().gradients +
                    replicas;
      } else {
        expected += 2 * (share(world()) * bytes + replicas);
      }
    }
    EXPECT_NEAR(sent, expected, 1e-6 * expected);
  });
}

/// Every needed wait is there: results hold NaN until their delayed collectives have run.
TEST_P(ConfigurationTest, WaitsForLateCollectives) {
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    DelayOptions late;
    late.longest = std::chrono::microseconds(300);
    ReductionRig rig(std::make_shared<DelayedGroup>(std::move(group), late), configuration());
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      rig.micro_step(exact_gradients(rig, rig.group->rank(), micro_step));
    }
    rig.reducer.finish();
    expect_equal(rig, rank_order_means(rig, 2, exact_gradients));
  });
}

INSTANTIATE_TEST_SUITE_P(, ConfigurationTest, ::testing::ValuesIn(all_configurations()),
                         [](const auto& info) { return name_of(info.param); });

// --- Memory of gradient buffers ---

TEST(GradientBuffers, OfRootUnitsHaveAPoolOfTheirOwn) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    ReductionRig rig(std::move(world), {2, 2, 2});
    rig.micro_step(exact_gradients(rig, rig.group->rank(), 0));
    const int64_t plain_bytes = rig.plan[2].layout.bytes();  // the larger of the plain units
    const int64_t root_bytes = rig.plan[1].layout.bytes();
    // Units complete in the reverse of the plan's order, so all three are open at once.
    EXPECT_EQ(rig.meter.now()[MemoryClass::kGradientBuffers], 2 * plain_bytes + root_bytes);
  });
}

TEST(Reducer, GivesBackAllMemory) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    for (const Degrees& configuration : all_degrees(2)) {
      MemoryMeter meter;
      RollingHash history;
      const ParameterTable table({{"a", ReductionRig::leaf({70}, at::kFloat)}});
      const UnitPlan plan(table, {{"a", {0}}}, 2, {.reduce = at::kDouble});
      const SliceMap slices(configuration, 2, world->rank());
      {
        const auto group = duplicate(*world, to_string(configuration));
        Reducer reducer(*group, table, plan, slices, {}, meter, history, nullptr);
        reducer.begin_micro_step(Mode::kReduce);
        reducer.receive(0, at::ones({70}));
        reducer.end_micro_step();
        EXPECT_EQ(reducer.gradient(0).scalar_type(), at::kFloat);
        EXPECT_GT(meter.now().total(), 0);
      }
      EXPECT_EQ(meter.now(), MemoryBytes{});
    }
  });
}

TEST(Reducer, RecordsEachReductionInTheTrace) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    MemoryMeter meter;
    RollingHash history;
    Trace trace;
    const ParameterTable table({{"a", ReductionRig::leaf({70}, at::kFloat)}});
    const UnitPlan plan(table, {{"unit a", {0}}}, 2);
    const SliceMap slices({1, 1, 2}, 2, world->rank());
    Reducer reducer(*world, table, plan, slices, {}, meter, history, &trace);
    reducer.begin_micro_step(Mode::kReduce);
    reducer.receive(0, at::ones({70}));
    reducer.end_micro_step();
    ASSERT_EQ(trace.spans().size(), 1u);
    EXPECT_EQ(trace.spans()[0].name, "unit a");
    EXPECT_EQ(trace.spans()[0].track, TraceTrack::kReduce);
    EXPECT_EQ(trace.spans()[0].bytes, plan[0].layout.bytes());
  });
}

// --- Ranks that differ where micro-steps reduce over subgroups only ---

TEST(PartialSums, ARankThatIsInTheStepAlreadyIsNamedAndNobodyWaits) {
  const auto errors = run_ranks_expecting_errors(4, [](std::shared_ptr<ProcessGroup> world) {
    ReductionRig rig(std::move(world), {1, 2, 4});
    if (rig.group->rank() == 3) {
      rig.reducer.finish();
    } else {
      rig.micro_step(exact_gradients(rig, rig.group->rank(), 0));
    }
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, ::testing::HasSubstr("reductions of a micro-step"));
    EXPECT_THAT(error, ::testing::HasSubstr("end of partial sums"));
  }
}

TEST(PartialSums, RanksThatDroppedDifferentThingsLeaveTheirSumsToTheVote) {
  run_ranks(4, [](std::shared_ptr<ProcessGroup> world) {
    ReductionRig rig(std::move(world), {2, 2, 4});
    rig.micro_step(exact_gradients(rig, rig.group->rank(), 0));
    if (rig.group->rank() == 1) rig.reducer.clear();
    rig.reducer.finish();
    EXPECT_FALSE(rig.reducer.gradient(0).defined());
    EXPECT_EQ(rig.reducer.squares(0).value(), 0.0);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
