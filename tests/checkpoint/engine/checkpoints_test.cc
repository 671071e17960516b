#include "tessera/checkpoints.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/state/saved_rank.h"

// Checkpoints: the parts of a run, saved while it trains, and a run that is resumed.
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr int64_t kSamples = 23;

/// A run that tracks one object of each kind, and uses all of them in each step.
struct TrackedRank : SavedRank {
  TrackedRank(std::shared_ptr<ProcessGroup> group, const Configuration& configuration,
              const std::string& directory, CheckpointsOptions options = {})
      : SavedRank(std::move(group), "OddMlp", configuration, 3),
        sampler(kSamples, *world, {.seed = 5, .remainder = data::Remainder::kDrop}),
        random(at::make_generator<at::CPUGeneratorImpl>(100 + world->rank())),
        checkpoints(*engine, directory, std::move(options)) {
    sampler.set_epoch(2);
    checkpoints.track("data", sampler)
        .track("random", random)
        .track("average", average)
        .track("count", count)
        .track("best", best)
        .track("note", note);
    engine->set_schedule([](int64_t step) { return 0.02 / static_cast<double>(1 + step); });
  }

  /// Trains up to `last` updates. Adds the samples that it used to `consumed`.
  void train_to(int64_t last) {
    sampler.reset();
    while (engine->steps() < last) {
      const auto step = static_cast<int>(engine->steps());
      // Two micro-steps, one as random as dropout makes it.
      (loss(step) * torch::rand({}, random)).backward();
      SavedRank::train(step, step + 1);
      auto samples = sampler.next(1);
      if (!samples.has_value()) {
        sampler.set_epoch(sampler.epoch() + 1);
        samples = sampler.next(1);
      }
      consumed.push_back(samples.value().front());
      sampler.advance();
      draws.push_back(torch::rand({1}, random).item<float>());
      average.mul_(0.5).add_(static_cast<double>(step));
      ++count;
      best += 0.25;
      note += 'x';
      is_stopped = checkpoints.after_step(wants_stop);
    }
  }

  data::DistributedSampler sampler;
  at::Generator random;
  at::Tensor average = torch::zeros({3}, torch::kDouble);
  int64_t count = 0;
  double best = 0.0;
  std::string note;
  std::vector<size_t> consumed;
  std::vector<float> draws;
  bool wants_stop = false;
  bool is_stopped = false;
  Checkpoints checkpoints;
};

class Runs : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
  const TemporaryDirectory directory_;
  std::string path() const { return directory_.path() + "/run"; }
};
INSTANTIATE_TEST_SUITE_P(World, Runs, ::testing::ValuesIn(spanning_worlds()));

/// A rank's results at the end of its run.
struct Rest {
  StateDict state;
  std::vector<size_t> consumed;
  std::vector<float> draws;
  at::Tensor average;
  int64_t count = 0;
  double best = 0.0;
  std::string note;
};

Rest rest_of(TrackedRank& run) {
  return {.state = run.engine->state_dict(StateScope::kEveryRank),
          .consumed = run.consumed,
          .draws = run.draws,
          .average = run.average,
          .count = run.count,
          .best = run.best,
          .note = run.note};
}

/// Trains to update `last`, starting from the directory's newest step, which must be `begin` (-1:
/// there is none).
std::vector<Rest> run_to(int world, const Configuration& configuration,
                         const std::string& directory, const CheckpointsOptions& options,
                         int64_t begin, int64_t last) {
  std::vector<Rest> rests(static_cast<size_t>(world));
  run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
    const auto rank = static_cast<size_t>(group->rank());
    TrackedRank run(std::move(group), configuration, directory, options);
    const auto loaded = run.checkpoints.load();
    EXPECT_EQ(loaded.has_value() ? loaded->step : -1, begin);
    run.train_to(last);
    rests[rank] = rest_of(run);
  });
  return rests;
}

TEST_P(Runs, GoOnWithAllThatTheyAreMadeOf) {
  const TemporaryDirectory another;
  const auto straight_in_float =
      run_to(world(), configuration_of(Strategy::kDdp), another.path(), {}, -1, 5);
  // With masters in fp32 and a scaled loss.
  const auto straight_in_bfloat16 =
      run_to(world(), in_bfloat16(configuration_of(Strategy::kDdp)), another.path(), {}, -1, 5);
  const auto configurations = [&] {
    std::vector<Configuration> all = configurations_at(world());
    for (const Configuration& plain : configurations_at(world())) all.push_back(in_bfloat16(plain));
    return all;
  };
  size_t turn = 0;
  for (const bool asynchronous : {true, false}) {
    size_t turn_of_kind = turn++;
    for (const Configuration& configuration : configurations()) {
      if (!has_turn(turn_of_kind++, 2)) continue;
      const bool has_masters = configuration.precision.parameters.has_value();
      const auto& straight = has_masters ? straight_in_bfloat16 : straight_in_float;
      const TemporaryDirectory directory;
      const CheckpointsOptions options{.every = 2, .asynchronous = asynchronous};
      // Steps after the last save are lost with the run, and made again.
      run_to(world(), configuration, directory.path(), options, -1, 3);
      run_to(world(), configuration, directory.path(), options, 2, 5);
      const auto rests = run_to(world(), configuration, directory.path(), options, 4, 5);
      for (size_t rank = 0; rank < rests.size(); ++rank) {
        const Rest& got = rests[rank];
        const Rest& expected = straight[rank];
        EXPECT_EQ(bit_differences(got.state, expected.state), "") << configuration;
        EXPECT_EQ(got.consumed.back(), expected.consumed.back());
        EXPECT_EQ(got.draws.back(), expected.draws.back());
        EXPECT_TRUE(got.average.equal(expected.average));
        EXPECT_EQ(got.count, 5);
        EXPECT_EQ(got.best, 1.25);
        EXPECT_EQ(got.note, "xxxxx");
      }
    }
  }
}

TEST_P(Runs, Case64_SaveTheStepAtWhichTheyWereAskedWhateverTrainingDoes) {
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    TrackedRank run(std::move(group), configuration_of(Strategy::kZero2), path());
    run.train_to(2);
    const StateDict then = run.engine->state_dict(StateScope::kEveryRank);
    const int64_t before = run.engine->memory().now()[MemoryClass::kHost];
    run.checkpoints.save();
    EXPECT_GT(run.engine->memory().now()[MemoryClass::kHost], before);
    run.train_to(4);
    run.checkpoints.finish();
    EXPECT_EQ(run.checkpoints.durable_step(), 2);
    EXPECT_EQ(run.checkpoints.load()->step, 2);
    EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), then), "");
    EXPECT_EQ(run.count, 2);
  });
}

TEST_P(Runs, KeepTheNewestAndEveryNth) {
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    TrackedRank run(std::move(group), configuration_of(Strategy::kZero1), path(),
                    {.every = 1, .keep = 2, .keep_every = 4});
    run.train_to(7);
    run.checkpoints.finish();
    EXPECT_EQ(run.checkpoints.durable_step(), 7);
  });
  EXPECT_THAT(names_in(path()), ElementsAre("lock", "step-4", "step-6", "step-7"));
}

TEST_P(Runs, SaveOnceWhereTheyEnd) {
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const bool is_last = group->rank() == world() - 1;
    TrackedRank run(std::move(group), configuration_of(Strategy::kZero3), path(), {.every = 3});
    run.train_to(2);
    EXPECT_FALSE(run.is_stopped);
    run.wants_stop = is_last;
    run.train_to(3);
    EXPECT_TRUE(run.is_stopped);
    EXPECT_EQ(run.checkpoints.durable_step(), 3);
    run.checkpoints.save();
  });
  EXPECT_THAT(names_in(path()), ElementsAre("lock", "step-3"));
}

TEST_P(Runs, EndOrGoOnWhereASaveFailsAsTheOptionSays) {
  for (const bool asynchronous : {true, false}) {
    for (const bool stop_on_error : {true, false}) {
      const TemporaryDirectory directory;
      run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
        const bool is_first = group->rank() == 0;
        const std::string path = directory.path() + "/run";
        TrackedRank run(std::move(group), configuration_of(Strategy::kZero2), path,
                        {.asynchronous = asynchronous, .stop_on_error = stop_on_error});
        run.train_to(1);
        if (is_first) std::filesystem::remove_all(path);
        run.world->barrier();
        const auto save = [&] {
          run.checkpoints.save();
          run.checkpoints.finish();
        };
        if (stop_on_error) {
          EXPECT_THAT(save, ThrowsMessage<c10::Error>(
                                AllOf(HasSubstr("[checkpoint] rank 0"),
                                      HasSubstr("cannot make the directory '" + path))));
        } else {
          save();
        }
        EXPECT_EQ(run.checkpoints.durable_step(), -1);
        run.train_to(2);
        if (is_first) std::filesystem::create_directory(path);
        run.world->barrier();
        run.checkpoints.save();
        run.checkpoints.finish();
        EXPECT_EQ(run.checkpoints.durable_step(), 2);
      });
    }
  }
}

TEST_P(Runs, ReportAFailedSaveInTheSameStepOnAllRanks) {
  std::vector<int64_t> thrown_at(static_cast<size_t>(world()), -1);
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const auto rank = static_cast<size_t>(group->rank());
    TrackedRank run(std::move(group), configuration_of(Strategy::kZero2), path());
    run.train_to(1);
    if (rank == 0) std::filesystem::remove_all(path());
    run.world->barrier();
    run.checkpoints.save();
    try {
      run.train_to(1'000'000);
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("cannot make the directory '" + path()));
      thrown_at[rank] = run.engine->steps();
    }
    const auto last = static_cast<int>(run.engine->steps());
    run.train(last, last + 1);  // the engine is unchanged
  });
  EXPECT_GT(thrown_at[0], 1);
  for (const int64_t step : thrown_at) EXPECT_EQ(step, thrown_at[0]);
}

TEST_P(Runs, HaveTheirDirectoryForThemselves) {
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    TrackedRank run(std::move(group), configuration_of(Strategy::kZero2), path());
    EXPECT_THAT([&] { const Checkpoints second(*run.engine, path()); },
                ThrowsMessage<c10::Error>(HasSubstr("pid " + std::to_string(::getpid()))));
    EXPECT_THAT([&] { save_checkpoint(*run.engine, path()); },
                ThrowsMessage<c10::Error>(HasSubstr("pid " + std::to_string(::getpid()))));
    EXPECT_THAT(([&] { const Checkpoints bad(*run.engine, path() + "2", {.keep = -1}); }),
                ThrowsMessage<c10::Error>(HasSubstr("keep -1")));
  });
}

TEST_P(Runs, ListWhatIsTrackedAndNotThereAndChangeNothing) {
  run_to(world(), configuration_of(Strategy::kZero1), path(), {.every = 1}, -1, 1);
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const SavedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero3), 77);
    const StateDict before = run.engine->state_dict(StateScope::kEveryRank);
    Checkpoints checkpoints(*run.engine, path());
    const data::DistributedSampler sampler(kSamples + 1, *run.world, {.seed = 5});
    double count = 0.0;
    int64_t more = 9;
    at::Tensor average = torch::zeros({4}, torch::kDouble);
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(7);
    checkpoints.track("data", sampler)
        .track("count", count)
        .track("more", more)
        .track("average", average)
        .track("random", random);
    EXPECT_THAT([&] { checkpoints.load(); },
                ThrowsMessage<c10::Error>(AllOf(
                    HasSubstr("'average': got Double[3], expected Double[4]"),
                    HasSubstr("'best': got it in the checkpoint"),
                    HasSubstr("'count': got another kind of value, expected a number"),
                    HasSubstr("'data': [sampler] load_state: this is the state of another run: it "
                              "has 23 samples, this data set 24"),
                    HasSubstr("'more': got none in the checkpoint, expected a whole number"),
                    HasSubstr("nothing was changed"))));
    EXPECT_EQ(bit_differences(run.engine->state_dict(StateScope::kEveryRank), before), "");
    EXPECT_EQ(more, 9);
    // After a refused load, the run in the directory may not be joined or deleted.
    EXPECT_THAT([&] { checkpoints.save(); },
                ThrowsMessage<c10::Error>(HasSubstr("go on with them by load()")));
  });
}

TEST_P(Runs, SeedGeneratorsAnewAtAnotherNumberOfRanks) {
  const int other = world() % 4 + 1;
  run_to(other, configuration_of(Strategy::kZero1), path(), {.every = 1}, -1, 1);
  std::vector<float> draws(static_cast<size_t>(world()));
  for (int repetition = 0; repetition < 2; ++repetition) {
    const std::vector<float> before = draws;
    run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
      const auto rank = static_cast<size_t>(group->rank());
      TrackedRank run(std::move(group), configuration_of(Strategy::kZero3), path());
      EXPECT_EQ(run.checkpoints.load()->world, other);
      EXPECT_EQ(run.sampler.state().cursor, other);
      draws[rank] = torch::rand({1}, run.random).item<float>();
    });
    if (repetition == 1) {
      EXPECT_EQ(draws, before);
    }
  }
  for (size_t rank = 1; rank < draws.size(); ++rank) EXPECT_NE(draws[rank], draws[0]);
}

TEST_P(Runs, LeaveADamagedStepBehindAlsoWhereItIsMended) {
  const Configuration configuration = configuration_of(Strategy::kZero1);
  run_to(world(), configuration, path(), {.every = 1, .keep = 0}, -1, 3);
  // Loads an older step, then the newest, from which the run continues.
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    TrackedRank run(std::move(group), configuration, path(), {.every = 1, .keep = 0});
    EXPECT_EQ(run.checkpoints.load({.step = 1})->step, 1);
    EXPECT_EQ(run.checkpoints.load()->step, 3);
    run.train_to(4);
  });
  EXPECT_THAT(names_in(path()), ElementsAre("lock", "step-1", "step-2", "step-3", "step-4"));
  // Without its manifest a step is damaged; with it again it is whole, and must not be in the way.
  const std::string manifest = path() + "/step-4/manifest.json";
  std::filesystem::rename(manifest, path() + "/kept");
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    const bool is_first = group->rank() == 0;
    TrackedRank run(std::move(group), configuration, path(), {.every = 1, .keep = 0});
    const auto loaded = run.checkpoints.load();
    ASSERT_TRUE(loaded.has_value());
    EXPECT_EQ(loaded->step, 3);
    EXPECT_THAT(loaded->rejected, ElementsAre(HasSubstr("step-4 is not used: ")));
    if (is_first) std::filesystem::rename(path() + "/kept", manifest);
    run.world->barrier();
    run.train_to(4);
    run.checkpoints.finish();
    EXPECT_EQ(run.checkpoints.durable_step(), 4);
  });
  EXPECT_THAT(names_in(path()), ElementsAre("lock", "step-1", "step-2", "step-3", "step-4",
                                            StartsWith("step-4.replaced-")));
}

TEST_P(Runs, GoBackAndSetAsideWhatCameAfter) {
  const Configuration configuration = configuration_of(Strategy::kZero1);
  run_to(world(), configuration, path(), {.every = 1, .keep = 0}, -1, 4);
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    TrackedRank run(std::move(group), configuration, path(), {.every = 2, .keep = 0});
    run.checkpoints.load({.step = 1});
    EXPECT_EQ(run.count, 1);
    run.train_to(2);
  });
  EXPECT_THAT(names_in(path()),
              ElementsAre("lock", "step-1", "step-2", StartsWith("step-2.replaced-"),
                          StartsWith("step-3.replaced-"), StartsWith("step-4.replaced-")));
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    TrackedRank run(std::move(group), configuration, path(), {.every = 1});
    EXPECT_THAT([&] { run.train_to(2); },
                ThrowsMessage<c10::Error>(HasSubstr("got steps of a run up to 2, expected none; go "
                                                    "on with them by load()")));
  });
  run_ranks(world(), [&](std::shared_ptr<ProcessGroup> group) {
    TrackedRank run(std::move(group), configuration, path(), {.every = 1, .keep = 1});
    run.checkpoints.start_over();
    run.train_to(1);
  });
  EXPECT_EQ(names_in(path()).size(), 7);
}

}  // namespace
}  // namespace tessera::internal::testing
