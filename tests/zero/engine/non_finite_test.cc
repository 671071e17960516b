#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/zero/engine/engine_fixture.h"
#include "tessera/trace.h"
#include "tessera/trace_file.h"

// The effect of Options::on_non_finite, ask_non_finite and loss_scale on a step.

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class NonFinitePolicy : public ::testing::TestWithParam<std::pair<Configuration, int>> {
 protected:
  struct Rank : OddRank {
    using OddRank::OddRank;
    /// Rank 0's loss is infinite if `is_bad`.
    void backward(int step, bool is_bad) const {
      at::Tensor own = loss(step);
      if (is_bad && world->rank() == 0) own = own * std::numeric_limits<double>::infinity();
      engine->scale(own).backward();
    }
  };

  static Options options() { return small_options_of(GetParam().first); }
  static void on_ranks(const Options& options, const std::function<void(Rank&)>& body) {
    run_ranks(GetParam().second, [&](std::shared_ptr<ProcessGroup> world) {
      Rank rank(std::move(world), options);
      body(rank);
    });
  }
};

TEST_P(NonFinitePolicy, SkipsAndGoesOnAsIfTheStepHadNotBeen) {
  Options skipping = options();
  skipping.on_non_finite = NonFinite::kSkip;
  on_ranks(skipping, [](Rank& rank) {
    rank.backward(0, false);
    rank.engine->step();
    const uint64_t before = parameter_hash(*rank.engine);
    rank.backward(1, true);
    const StepResult skipped = rank.engine->step();
    EXPECT_FALSE(skipped.committed);
    EXPECT_EQ(skipped.step, 1);
    EXPECT_FALSE(std::isfinite(skipped.grad_norm));
    EXPECT_EQ(parameter_hash(*rank.engine), before);
    rank.backward(1, false);
    EXPECT_EQ(rank.engine->step().step, 2);
    const uint64_t after = parameter_hash(*rank.engine);

    Rank plain(rank.world, options());
    for (int step = 0; step < 2; ++step) {
      plain.backward(step, false);
      plain.engine->step();
    }
    EXPECT_EQ(parameter_hash(*plain.engine), after);
  });
}

TEST_P(NonFinitePolicy, AsksOnEveryRankWithTheSameReport) {
  Options asking = options();
  const int size = GetParam().second;
  std::vector<NonFiniteReport> reports(static_cast<size_t>(size));
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
    NonFiniteReport& mine = reports[static_cast<size_t>(world->rank())];
    Options own = asking;
    own.ask_non_finite = [&mine](const NonFiniteReport& report) {
      mine = report;
      return report.step == 1 ? NonFinite::kSkip : NonFinite::kStop;
    };
    Rank rank(std::move(world), own);
    rank.backward(0, true);
    EXPECT_FALSE(rank.engine->step().committed);
    rank.backward(0, false);
    EXPECT_TRUE(rank.engine->step().committed);
    rank.backward(1, true);
    EXPECT_THROW(rank.engine->step(), c10::Error);
  });
  for (const NonFiniteReport& report : reports) {
    EXPECT_EQ(report.step, 2);
    ASSERT_EQ(report.gradients.size(), 1u);
    EXPECT_EQ(report.gradients[0].rank, 0);
    EXPECT_FALSE(report.gradients[0].parameter.empty());
    EXPECT_GT(report.gradients[0].elements, 0);
  }
}

TEST_P(NonFinitePolicy, StopsByDefaultAndUnderALossScaleSkips) {
  on_ranks(options(), [](Rank& rank) {
    rank.backward(0, true);
    EXPECT_THROW(rank.engine->step(), c10::Error);
  });
  Options scaled = options();
  scaled.loss_scale = LossScale{.initial = 8.0};
  on_ranks(scaled, [](Rank& rank) {
    rank.backward(0, true);
    const StepResult skipped = rank.engine->step();
    EXPECT_FALSE(skipped.committed);
    EXPECT_EQ(skipped.loss_scale, 8.0);
    EXPECT_EQ(rank.engine->loss_scale(), 4.0);
  });
}

TEST_P(NonFinitePolicy, RefusesALossThatWasNotScaled) {
  Options scaled = options();
  scaled.loss_scale = LossScale{};
  const std::vector<std::string> errors =
      run_ranks_expecting_errors(GetParam().second, [&](std::shared_ptr<ProcessGroup> world) {
        Rank rank(std::move(world), scaled);
        loss_on(*rank.net, rank.world->rank(), 0).backward();
        rank.engine->step();
      });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("without engine->scale(loss), which loss_scale needs"));
    EXPECT_THAT(error, HasSubstr("Nothing was applied"));
  }
}

INSTANTIATE_TEST_SUITE_P(, NonFinitePolicy, configurations_and_worlds(), name_of);

/// A step's trace has every kind of span; without the option there is no trace.
TEST(EngineTrace, HasEveryTrack) {
  for (const bool is_on : {true, false}) {
    run_ranks(3, [is_on](std::shared_ptr<ProcessGroup> world) {
      const auto net = make_net();
      Options options = small_options_of(configuration_of(Strategy::kZero3));
      options.trace = is_on;
      const auto engine = parallelize(net, adamw(), options, world);
      for (int step = 0; step < 2; ++step) {
        loss_on(*net, world->rank(), step).backward();
        engine->step();
      }
      if (!is_on) {
        EXPECT_EQ(trace_of(*engine), nullptr);
        EXPECT_THAT([&] { write_trace(*engine, "nowhere.json"); },
                    ThrowsMessage<c10::Error>(HasSubstr("made with Options::trace")));
        return;
      }
      ASSERT_NE(trace_of(*engine), nullptr);
      for (const TraceTrack track : {TraceTrack::kCompute, TraceTrack::kGather, TraceTrack::kReduce,
                                     TraceTrack::kOptimizer, TraceTrack::kVote}) {
        const auto spans = trace_of(*engine)->spans();
        EXPECT_TRUE(std::any_of(spans.begin(), spans.end(), [track](const Trace::Span& span) {
          return span.track == track;
        })) << to_string(track);
      }
    });
  }
}

}  // namespace
}  // namespace tessera::internal::testing
