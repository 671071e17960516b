#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <set>

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include "tessera/rendezvous.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Engines are made, used and destroyed while LibTorch's profiler is on or off, in every order.

namespace tessera::internal::testing {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

void start_profiler() {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CPU};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
}

/// Stops the profiler; returns the number of its events.
size_t stop_profiler() { return profiler::disableProfiler()->events().size(); }

/// The number of events of a forward without an engine: with one, there must be at least as many.
size_t events_of_forward() {
  const auto net = make_net();
  start_profiler();
  loss_on(*net, 0, 0);
  return stop_profiler();
}

/// A world of one rank, because profilers belong to the process.
struct Trained {
  explicit Trained(const std::shared_ptr<ProcessGroup>& world)
      : net(make_net()),
        engine(parallelize(net, adamw(), small_options_of(configuration()), world)) {}

  static Configuration configuration() { return hostile(configuration_of(Strategy::kZero3)); }
  void train(int step) const {
    loss_on(*net, 0, step).backward();
    EXPECT_TRUE(engine->step().committed);
  }

  std::shared_ptr<Net> net;
  std::unique_ptr<Engine> engine;
};

/// Runs on the test's thread, because Kineto must be used where it was set up.
void on_one_rank(const RankBody& body) {
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 1;
  body(init_process_group(options));
}

TEST(Profiler, MayBeOnBeforeParallelizeAndEndAfterSteps) {
  on_one_rank([](const std::shared_ptr<ProcessGroup>& world) {
    const size_t least = events_of_forward();
    start_profiler();
    const Trained trained(world);
    trained.train(0);
    EXPECT_GE(stop_profiler(), least);
    trained.train(1);
  });
}

TEST(Profiler, MayBeOnForOneStep) {
  on_one_rank([](const std::shared_ptr<ProcessGroup>& world) {
    const size_t least = events_of_forward();
    const Trained trained(world);
    trained.train(0);
    start_profiler();
    trained.train(1);
    EXPECT_GE(stop_profiler(), least);
    trained.train(2);
  });
}

TEST(Profiler, MayBeginAndEndInTheMidstOfAStep) {
  on_one_rank([](const std::shared_ptr<ProcessGroup>& world) {
    const size_t least = events_of_forward();
    const Trained trained(world);
    start_profiler();
    const at::Tensor loss = loss_on(*trained.net, 0, 0);
    EXPECT_GE(stop_profiler(), least);
    loss.backward();
    start_profiler();
    trained.engine->step();
    stop_profiler();
    trained.train(1);
  });
}

TEST(Profiler, MaySeeEnginesComeAndGo) {
  on_one_rank([](const std::shared_ptr<ProcessGroup>& world) {
    const size_t least = events_of_forward();
    std::optional<Trained> first(world);
    start_profiler();
    std::optional<Trained> second(world);
    first->train(0);
    second->train(0);
    first.reset();
    second->train(1);
    EXPECT_GE(stop_profiler(), least);
    second->train(2);
    start_profiler();
    second.reset();
    const Trained third(world);
    third.train(0);
    EXPECT_GE(stop_profiler(), least);
    third.train(1);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
