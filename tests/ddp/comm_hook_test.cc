#include "tessera/comm_hook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/ddp/hooked_rank.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/trace.h"

// The arguments of hooks; and a hook that reduces as the engine does must train to the engine's
// bits.

namespace tessera::internal::testing {
namespace {

/// all_reduce_hook() with its result in separate memory.
std::shared_ptr<CommHook> copying_hook() {
  return make_comm_hook("copying", [](const GradBucket& bucket, ProcessGroup& group) {
    at::Tensor sum = bucket.buffer.clone();
    bucket.buffer.fill_(NAN);
    group.all_reduce(sum, ReduceOp::kAvg, bucket.name, bucket.divisor)->wait();
    return sum;
  });
}

std::vector<Configuration> hooked_configurations(int world) {
  std::vector<Configuration> all = {configuration_of(Strategy::kDdp),
                                    configuration_of(Strategy::kZero1),
                                    apart(configuration_of(Strategy::kZero1))};
  if (world == 4) all.push_back(hybrid(1, 1, 2));
  return all;
}

class CommHooks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CommHooks, ::testing::Values(1, 2, 3, 4));

TEST_P(CommHooks, AnAllReduceTrainsToTheBitsOfTheEngine) {
  const std::vector<std::string> models = {
      "OddMlp",          "TinyAndScalar",     "TiedMlp",     "FrozenLayers",  "UnusedEverywhere",
      "Branches",        "CalledTwice",       "Conv",        "ChannelsLast",  "Gapped",
      "SparseEmbedding", "CheckpointedTwice", "MixedDtypes", "EmptyParameter"};
  size_t turn = static_cast<size_t>(GetParam());
  for (const Configuration& configuration : hooked_configurations(GetParam())) {
    for (size_t i = turn % 2; i < models.size(); i += 2) {
      const Subject& model = subject(models[i]);
      const Schedule& schedule = schedules()[turn % schedules().size()];
      const auto make = turn++ % 3 == 0 ? &copying_hook : &all_reduce_hook;
      const Outcome got = train_on_threads(model, at::kFloat, configuration, schedule, GetParam(),
                                           {.backward = hooked(make)});
      EXPECT_EQ(bit_differences(
                    got, expected_outcome(model, at::kFloat, configuration, schedule, GetParam())),
                "")
          << configuration << " " << model << " " << schedule;
    }
    ++turn;
  }
}

TEST_P(CommHooks, ScaledDividedAndRoundedGradientsGiveTheSameBitsToo) {
  for (Configuration configuration : hooked_configurations(GetParam())) {
    configuration.precision.parameters = at::kBFloat16;
    const auto train_here = [&](TrainOptions options) {
      options.adjust = [](Options& changed) {
        changed.loss_scale.emplace();
        changed.gradient_divide_factor = 1.5;
      };
      return train_on_threads(subject("OddMlp"), at::kFloat, configuration,
                              schedule_called("ThriceClipped"), GetParam(), options);
    };
    EXPECT_EQ(bit_differences(train_here({.backward = hooked(&all_reduce_hook)}), train_here({})),
              "")
        << configuration;
  }
}

/// Negative control: a hook that divides twice, or leaves out a rank, trains to other values.
TEST(CommHookNegativeControl, OtherMeansAreNoticed) {
  const auto train_here = [](const TrainOptions& options) {
    return train_on_threads(subject("OddMlp"), at::kFloat, configuration_of(Strategy::kZero1),
                            schedule_called("Once"), 3, options);
  };
  const Outcome right = train_here({});
  const auto means = [](const std::function<void(const GradBucket&, ProcessGroup&)>& spoil) {
    return hooked([spoil] {
      return make_comm_hook("spoiled", [spoil](const GradBucket& bucket, ProcessGroup& group) {
        spoil(bucket, group);
        group.all_reduce(bucket.buffer, ReduceOp::kAvg, bucket.name, bucket.divisor)->wait();
        return bucket.buffer;
      });
    });
  };
  const auto leave_out = [](const GradBucket& bucket, ProcessGroup& group) {
    if (group.rank() == 2) bucket.gradients[0].zero_();
  };
  const auto divide = [](const GradBucket& bucket, ProcessGroup&) { bucket.buffer.div_(3); };
  const auto nothing = [](const GradBucket&, ProcessGroup&) {};
  EXPECT_EQ(bit_differences(train_here({.backward = means(nothing)}), right), "");
  EXPECT_NE(bit_differences(train_here({.backward = means(leave_out)}), right), "");
  EXPECT_NE(bit_differences(train_here({.backward = means(divide)}), right), "");
}

/// The gradients that each rank has alone. With one rank, or with equal samples on all ranks, the
/// mean is the same.
TEST(NoopHook, SendsNothingAndKeepsEachRanksOwnGradients) {
  for (const int size : {1, 2, 3, 4}) {
    run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
      const auto recording = std::make_shared<Recording>();
      HookedRank rank(std::make_shared<RecordingGroup>(world, recording), noop_hook());
      std::map<std::string, at::Tensor> own;
      {
        const auto alone = prepare(subject("OddMlp").make(), at::kFloat, 3);
        const Schedule schedule{.name = ""};
        const Moment moment{.step = 0, .rank = world->rank()};
        loss_of(*alone, batch_of(rank.trained, at::kFloat, schedule, moment, 0), moment, schedule)
            .backward();
        for (const auto& entry : alone->named_parameters()) own[entry.key()] = entry->grad();
      }
      recording->clear();
      rank.backward(0);
      EXPECT_EQ(recording->count("all_reduce"), 0);
      EXPECT_LE(recording->count(), 1) << "the agreement at the end of backward";
      for (const Parameter& parameter : rank.engine->parameters()) {
        EXPECT_TRUE(have_same_bits(parameter.tensor.grad(), own.at(parameter.name)))
            << parameter.name << " of rank " << world->rank() << " of " << size;
      }
      EXPECT_TRUE(rank.engine->step().committed);
    });
  }
}

TEST(NoopHook, HasTheBitsOfNoneWhereRanksHaveTheSameSamples) {
  for (const int size : {1, 2, 4}) {  // a sum of three equal numbers may be rounded
    for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1}) {
      run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
        const Options options = small_options_of(configuration_of(strategy));
        HookedRank plain(world, nullptr, "OddMlp", options);
        HookedRank hooked(world, noop_hook(), "OddMlp", options);
        for (int step = 0; step < 3; ++step) {
          for (HookedRank* rank : {&plain, &hooked}) {
            const at::Tensor input = at::arange(14, at::kFloat).view({2, 7}).div_(7 + step);
            rank->net->forward(input, {.step = step, .rank = 0}).square().mean().backward();
            rank->engine->step();
          }
        }
        EXPECT_EQ(parameter_hash(*plain.engine), parameter_hash(*hooked.engine))
            << to_string(strategy) << " " << size;
      });
    }
  }
}

/// A hook's arguments, bucket by bucket.
struct Seen {
  size_t index;
  bool is_last;
  double divisor;
  std::vector<std::string> names;
};

std::shared_ptr<CommHook> watching_hook(std::vector<Seen>& seen) {
  return make_comm_hook("watching", [&seen](const GradBucket& bucket, ProcessGroup& group) {
    seen.push_back({bucket.index, bucket.is_last, bucket.divisor, bucket.names});
    EXPECT_EQ(bucket.gradients.size(), bucket.parameters.size());
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      EXPECT_EQ(bucket.gradients[i].sizes(), bucket.parameters[i].sizes());
      EXPECT_TRUE(bucket.gradients[i].is_alias_of(bucket.buffer));
    }
    group.all_reduce(bucket.buffer, ReduceOp::kAvg, bucket.name, bucket.divisor)->wait();
    return bucket.buffer;
  });
}

TEST(GradBuckets, ComeInOrderOncePerBackwardThatReducesAndEndWithTheLast) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    std::vector<Seen> seen;
    HookedRank rank(world, watching_hook(seen));
    const size_t buckets = rank.engine->units().size();
    ASSERT_GT(buckets, 1U);
    {
      const auto alone = rank.engine->no_sync();
      rank.backward(0);
    }
    EXPECT_TRUE(seen.empty()) << "no_sync() sends nothing";
    for (int micro_step = 1; micro_step < 3; ++micro_step) {
      seen.clear();
      rank.backward(micro_step);
      ASSERT_EQ(seen.size(), buckets);
      std::vector<std::string> names;
      for (size_t i = 0; i < buckets; ++i) {
        EXPECT_EQ(seen[i].index, i);
        EXPECT_EQ(seen[i].is_last, i + 1 == buckets);
        EXPECT_EQ(seen[i].divisor, 3.0);
        names.insert(names.end(), seen[i].names.begin(), seen[i].names.end());
      }
      EXPECT_EQ(names.size(), rank.engine->parameters().size());
    }
    rank.engine->step();
    seen.clear();
    {
      const auto alone = rank.engine->no_sync();
      rank.backward(3);
    }
    rank.engine->step();
    EXPECT_EQ(seen.size(), buckets) << "what no_sync() left, step() reduces";
  });
}

/// A hook that records its settings.
class PreparedHook final : public CommHook {
 public:
  std::string name() const override { return "prepared"; }
  void prepare(const Setting& setting) override { settings_seen.push_back(setting); }
  at::Tensor run(const GradBucket& bucket, ProcessGroup& group) override {
    EXPECT_LT(bucket.index, settings_seen.back().buckets.size());
    const auto& expected = settings_seen.back().buckets[bucket.index];
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(expected[i].name, bucket.names[i]);
    group.all_reduce(bucket.buffer, ReduceOp::kAvg, bucket.name, bucket.divisor)->wait();
    return bucket.buffer;
  }
  std::vector<Setting> settings_seen;
};

TEST(CommHooksOfAnEngine, AreKeptWhenWhatIsTrainedChanges) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1}) {
    run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
      const Options options = small_options_of(configuration_of(strategy));
      const auto hook = std::make_shared<PreparedHook>();
      HookedRank plain(world, nullptr, "OddMlp", options);
      HookedRank hooked(world, hook, "OddMlp", options);
      for (HookedRank* rank : {&plain, &hooked}) {
        rank->train(0);
        rank->engine->set_trainable([](std::string_view name, const at::Tensor&) {
          return name.find("weight") != name.npos;
        });
        rank->train(1);
        rank->engine->set_trainable([](std::string_view, const at::Tensor&) { return true; });
        rank->train(2);
      }
      EXPECT_EQ(hook->settings_seen.size(), 3U);
      EXPECT_EQ(parameter_hash(*plain.engine), parameter_hash(*hooked.engine));
    });
  }
}

TEST(CommHooksOfAnEngine, AreTracedWithTheBytesThatTheySend) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    Options options = HookedRank::small_ddp();
    options.trace = true;
    const auto bytes_of = [&](const std::shared_ptr<CommHook>& hook) {
      HookedRank rank(world, hook, "OddMlp", options);
      rank.train(0);
      int64_t bytes = 0;
      for (const Trace::Span& span : trace_of(*rank.engine)->spans()) {
        if (span.track == TraceTrack::kReduce) bytes += span.bytes;
      }
      return bytes;
    };
    const int64_t plain = bytes_of(nullptr);
    EXPECT_GT(plain, 0);
    EXPECT_EQ(bytes_of(all_reduce_hook()), plain);
    EXPECT_EQ(bytes_of(noop_hook()), 0);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
