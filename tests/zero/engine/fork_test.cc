// Children that a rank forks while it trains: they see no parameters, change none and end cleanly.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

namespace tessera::internal::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// GCC 12's sanitizers do not hold their allocators' locks across fork(), so in the child a lock may
// stay locked for ever. Under them no other thread may be active during a fork.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kAllocatorSurvivesFork = false;
#else
constexpr bool kAllocatorSurvivesFork = true;
#endif

/// Ranks that are threads, one of which forks.
class ForkingRanks {
 public:
  explicit ForkingRanks(int size) : still_(size - 1) {}

  /// All ranks call this; the one with `forks` calls `fork_a_child`.
  void fork(bool forks, const std::function<void()>& fork_a_child) {
    if (forks) {
      if (!kAllocatorSurvivesFork) still_.wait();
      fork_a_child();
      forked_.count_down();
    } else if (!kAllocatorSurvivesFork) {
      still_.count_down();
      forked_.wait();
    }
  }

 private:
  std::latch still_;
  std::latch forked_{1};
};

/// Trains three steps; the last rank calls `fork_a_child` after the first, if it is given. Returns
/// rank 0's parameters.
std::map<std::string, at::Tensor> train(
    const Configuration& configuration, int size,
    const std::function<void(Engine& engine, Net& net)>& fork_a_child) {
  std::map<std::string, at::Tensor> result;
  ForkingRanks ranks(size);
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
    const auto net = make_net();
    auto engine = parallelize(net, adamw(), small_options_of(configuration), world);
    for (int step = 0; step < 3; ++step) {
      loss_on(*net, world->rank(), step).backward();
      engine->step();
      if (step > 0) continue;
      world->barrier("before the fork");
      ranks.fork(world->rank() == size - 1, [&] {
        if (fork_a_child) fork_a_child(*engine, *net);
      });
      world->barrier("after the fork");
    }
    const auto whole = engine->full_parameters();
    if (world->rank() == 0) result = copy_parameters(*net);
  });
  return result;
}

class ForkTest : public EngineTest {};

TEST_P(ForkTest, AChildOfATrainingRankReadsNoParameters) {
  const auto with_child = train(configuration(), size(), [&](Engine& /*engine*/, Net& net) {
    const at::Tensor alias = net.parameters()[0].detach();
    const ForkedChild child = run_in_fork([&] {
      std::string said;
      const auto add = [&](const char* what, const std::function<void()>& call) {
        absl::StrAppend(&said, what, ": ", message_of(call), "\n");
      };
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : net.parameters()) {
        add("data", [&] { parameter.data_ptr<double>(); });
        add("read", [&] { parameter.const_data_ptr<double>(); });
        add("operator", [&] { parameter.sum(); });
        add("write", [&] { parameter.fill_(0); });
      }
      add("alias", [&] { alias.sum(); });
      add("forward", [&] { loss_on(net, 0, 0); });
      return said;
    });
    EXPECT_EQ(child.exit_code, 0) << child.text;
    const std::vector<std::string> lines = absl::StrSplit(child.text, '\n', absl::SkipEmpty());
    EXPECT_EQ(lines.size(), 4 * net.parameters().size() + 2);
    EXPECT_THAT(lines, Each(HasSubstr("this process is a fork of ")));
  });
  EXPECT_EQ(bit_differences(with_child, train(configuration(), size(), nullptr)), "");
}

TEST_P(ForkTest, AChildOfATrainingRankIsRefusedByEveryCallOfTheEngine) {
  const auto with_child = train(configuration(), size(), [&](Engine& engine, Net& net) {
    StateDict state;
    const ForkedChild child = run_in_fork([&] {
      std::string said;
      const auto add = [&](const char* what, const std::function<void()>& call) {
        absl::StrAppend(&said, what, ": ", message_of(call), "\n");
      };
      add("step", [&] { engine.step(); });
      add("zero_grad", [&] { engine.zero_grad(); });
      add("modify", [&] { engine.modify_parameters(0, [] {}); });
      add("full", [&] { (void)engine.full_parameters(); });
      add("gather", [&] { (void)engine.gather(net); });
      add("wait", [&] { engine.wait(); });
      add("state", [&] { (void)engine.state_dict(StateScope::kEveryRank, 0); });
      add("load", [&] { engine.load_state_dict(state); });
      add("hash", [&] { parameter_hash(engine); });
      return said;
    });
    EXPECT_EQ(child.exit_code, 0) << child.text;
    const std::vector<std::string> lines = absl::StrSplit(child.text, '\n', absl::SkipEmpty());
    EXPECT_EQ(lines.size(), 9u);
    EXPECT_THAT(lines, Each(HasSubstr("this process is a fork of ")));
  });
  EXPECT_EQ(bit_differences(with_child, train(configuration(), size(), nullptr)), "");
}

/// A child writes through pointers that it had before the fork.
TEST_P(ForkTest, WritesOfAChildNeverReachItsParent) {
  const auto with_child = train(configuration(), size(), [&](Engine& engine, Net& net) {
    std::vector<std::pair<double*, int64_t>> places;
    const auto module = engine.gather(net);
    for (const at::Tensor& parameter : net.parameters()) {
      // NOLINTNEXTLINE: the parent must not be seen to write
      places.emplace_back(const_cast<double*>(parameter.const_data_ptr<double>()),
                          parameter.numel());
    }
    const ForkedChild child = run_in_fork([&] {
      for (const auto& [data, numel] : places) std::fill_n(data, numel, 7.0);
      return absl::StrCat(places[0].first[0]);
    });
    EXPECT_EQ(child.text, "7");
  });
  EXPECT_EQ(bit_differences(with_child, train(configuration(), size(), nullptr)), "");
}

/// A child destroys the engines and models that it inherited.
TEST_P(ForkTest, AChildDestroysWhatItInherited) {
  ForkingRanks ranks(size());
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
    Rank rank(world, configuration());
    rank.train(0);
    rank.world->barrier("before the fork");
    ranks.fork(rank.world->rank() == 0, [&] {
      const ForkedChild child = run_in_fork([&] {
        rank.engine.reset();
        rank.net.reset();
        return "gone";
      });
      EXPECT_EQ(child.text, "gone");
      EXPECT_EQ(child.exit_code, 0);
    });
    rank.world->barrier("after the fork");
    rank.train(1);
  });
}

// --- Ranks that are processes ---

/// Forks a child that returns from main, where engine, model and groups are destroyed, while the
/// parent continues training.
const RankProcessBody kTrains("forks_while_training", [] {
  ProcessGroupOptions options;
  options.lane = std::getenv("TEST_LANE") == nullptr ? ProcessGroupOptions::Lane::kInline
                                                     : ProcessGroupOptions::Lane::kThread;
  const auto world = init_process_group(options);
  const auto net = make_net();
  const auto engine =
      parallelize(net, adamw(),
                  small_options_of(configuration_called(std::getenv("TEST_CONFIGURATION"))), world);
  for (int step = 0; step < 3; ++step) {
    if (step == 1 && world->rank() == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(30);
        std::printf("child: %s\n", message_of([&] { engine->step(); }).c_str());
        return;
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      std::printf("child ended with %d\n", status);
    }
    loss_on(*net, world->rank(), step).backward();
    engine->step();
  }
  std::printf("done\n");
});

TEST(ForkOfTrainingProcess, ReturnsFromMainWhileItsParentTrainsOn) {
  for (const char* configuration : {"ddp", "zero1_apart", "zero2", "zero3", "zero3_apart"}) {
    for (const bool has_lane : {false, true}) {
      if (has_lane && !kAllocatorSurvivesFork) continue;
      RankProcessOptions options;
      options.environment["TEST_CONFIGURATION"] = configuration;
      // A child lacks the threads that would have freed their tasks.
      options.environment["ASAN_OPTIONS"] = "detect_leaks=0";
      if (has_lane) options.environment["TEST_LANE"] = "1";
      const auto results = run_rank_processes(2, "forks_while_training", options);
      for (const RankResult& result : results) {
        EXPECT_EQ(result.exit_code, 0) << configuration << ": " << result.output;
        EXPECT_THAT(result.output, HasSubstr("done\n")) << configuration;
      }
      EXPECT_THAT(results[1].output, HasSubstr("this process is a fork of rank 1"))
          << configuration;
      EXPECT_THAT(results[1].output, HasSubstr("child ended with 0\n")) << configuration;
    }
  }
}

auto all_configurations_and_worlds() {
  std::vector<std::pair<Configuration, int>> all;
  for (const Configuration& configuration : named_and_apart_configurations()) {
    for (const int world : {1, 3}) all.emplace_back(configuration, world);
  }
  if (kAllocatorSurvivesFork) {
    Configuration fetching = apart(configuration_of(Strategy::kZero3));
    fetching.name += "_prefetch";
    fetching.prefetch = true;  // in a thread
    all.emplace_back(fetching, 3);
  }
  all.emplace_back(hybrid(2, 2, 4), 4);
  return ::testing::ValuesIn(all);
}

INSTANTIATE_TEST_SUITE_P(, ForkTest, all_configurations_and_worlds(), &name_of);

}  // namespace
}  // namespace tessera::internal::testing
