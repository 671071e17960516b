// Options::offload: keeping data in the host's memory while a GPU trains changes no bit.
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/state_stream.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/engine_rank.h"
#include "tessera/tests/support/gpu_for_tests.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Configuration offloading(Configuration configuration, Offload offload) {
  configuration.name += "_" + std::string(to_string(offload));
  configuration.offload = offload;
  configuration.poison_freed = true;
  return configuration;
}

/// `configuration` without offload.
Configuration resident(Configuration configuration) {
  configuration.offload = Offload::kNone;
  configuration.asynchronous_step = false;
  return configuration;
}

std::vector<Configuration> offloading_configurations() {
  std::vector<Configuration> configurations;
  for (const Configuration& configuration : named_configurations())
    configurations.push_back(offloading(configuration, Offload::kOptimizer));
  configurations.push_back(offloading(configuration_of(Strategy::kZero3), Offload::kParameters));
  Configuration ahead = configurations.back();
  ahead.name += "_ahead";
  ahead.prefetch = true;
  configurations.push_back(ahead);
  configurations.push_back(offloading(resharding(1), Offload::kParameters));
  return configurations;
}

// --- The same bits ---

using OffloadCase = std::tuple<Configuration, int /*world*/, std::string /*model*/,
                               std::string /*schedule*/, bool /*in 16 bits*/>;

std::string offload_name(const ::testing::TestParamInfo<OffloadCase>& info) {
  const auto& [configuration, world, model, schedule, narrow] = info.param;
  return configuration.name + "_World" + std::to_string(world) + "_" + model + "_" + schedule +
         (narrow ? "_Bf16" : "");
}

class OffloadBits : public ::testing::TestWithParam<OffloadCase> {};

TEST_P(OffloadBits, AreThoseOfTheResidentRun) {
  const auto& [given, world, model, name, narrow] = GetParam();
  if (world > most_rank_threads()) GTEST_SKIP() << "needs " << world << " GPUs";
  Configuration configuration = given;
  if (narrow)
    configuration.precision = {.parameters = at::kBFloat16, .communication = at::kBFloat16};
  const Schedule& schedule = schedule_called(name);
  const Outcome expected = train_on_threads(subject(model), at::kFloat, resident(configuration),
                                            schedule, world, {}, staged_over_host());
  const Outcome outcome = train_on_threads(subject(model), at::kFloat, configuration, schedule,
                                           world, {}, staged_over_host());
  EXPECT_EQ(bit_differences(outcome, expected), "");
}

INSTANTIATE_TEST_SUITE_P(Strategies, OffloadBits,
                         ::testing::Combine(::testing::ValuesIn(offloading_configurations()),
                                            ::testing::ValuesIn(spanning_sizes({1, 2, 3})),
                                            ::testing::Values("UnusedEverywhere"),
                                            ::testing::Values("OnceClipped", "ThriceClipped",
                                                              "ThriceNoSync"),
                                            ::testing::Bool()),
                         offload_name);

/// Clipping without kernels: the host clips by other norms, by group and by value.
TEST(Offload, ClipsAsOnACpu) {
  constexpr int kWorld = 2;
  if (kWorld > most_rank_threads()) GTEST_SKIP() << "needs " << kWorld << " GPUs";
  const Schedule& schedule = schedule_called("ThriceNoSync");
  TrainOptions clipping;
  clipping.adjust = [](Options& options) {
    options.grad_norm_type = 1.0;
    options.max_grad_norm_by_group = {{"defaults", 0.1}, {"biases", 0.02}};
    options.max_grad_value = 0.003;
  };
  for (const Configuration& configuration : offloading_configurations()) {
    Configuration on_cpu = resident(configuration);
    on_cpu.asynchronous_step.reset();
    on_cpu.prefetch.reset();
    const Outcome expected =
        train_on_threads(subject("OddMlp"), at::kFloat, on_cpu, schedule, kWorld, clipping);
    const Outcome outcome = train_on_threads(subject("OddMlp"), at::kFloat, configuration, schedule,
                                             kWorld, clipping, staged_over_host());
    EXPECT_EQ(bit_differences(outcome, expected), "") << configuration;
  }
}

// --- Where data is stored ---

class OffloadMemory : public ::testing::TestWithParam<std::tuple<Configuration, int>> {};

TEST_P(OffloadMemory, IsTheHosts) {
  const auto& [configuration, world] = GetParam();
  if (world > most_rank_threads()) GTEST_SKIP() << "needs " << world << " GPUs";
  for (const bool narrow : {false, true}) {
    SCOPED_TRACE(narrow ? "16 bits" : "32 bits");
    Configuration given = configuration;
    if (narrow) given.precision = {.parameters = at::kBFloat16, .reduce = at::kBFloat16};
    const auto check = [&configuration = configuration](Engine& engine, int) {
      const MemoryBytes now = engine.memory().now();
      const MemoryBytes predicted = predicted_memory(engine, /*micro_steps=*/1);
      for (const MemoryClass kind :
           {MemoryClass::kParameters, MemoryClass::kGradients, MemoryClass::kOptimizer,
            MemoryClass::kUnshardedParameters, MemoryClass::kRoot, MemoryClass::kHost}) {
        EXPECT_EQ(now[kind], predicted[kind]) << to_string(kind);
      }
      EXPECT_EQ(now[MemoryClass::kOptimizer], 0);
      EXPECT_GT(now[MemoryClass::kHost], 0);
      EXPECT_EQ(now[MemoryClass::kParameters] == 0, configuration.offload == Offload::kParameters);
    };
    train_on_threads(subject("DeepMlp"), at::kFloat, given, schedule_called("Once"), world,
                     {.after_step = check}, staged_over_host());
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, OffloadMemory,
                         ::testing::Combine(::testing::ValuesIn(offloading_configurations()),
                                            ::testing::Values(1, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_World" +
                                  std::to_string(std::get<1>(info.param));
                         });

// --- One engine ---

/// A rank that trains two odd layers.
struct Rank : EngineRank<Net> {
  Rank(std::shared_ptr<ProcessGroup> group, const Configuration& configuration,
       std::optional<LossScale> scale = {}, const Decorate& decorate = staged_over_host())
      : Rank(decorate(std::move(group)), scaled_options_of(configuration, scale)) {}

  at::Tensor loss(int step) const override {
    const Schedule schedule{.name = ""};
    const Moment moment{.step = step, .rank = world->rank()};
    Batch batch = batch_of(subject("OddMlp"), at::kFloat, schedule, moment, 0);
    batch = {batch.input.to(world->device()), batch.target.to(world->device())};
    return engine->scale(loss_of(*net, batch, moment, schedule));
  }

 private:
  Rank(const std::shared_ptr<ProcessGroup>& group, const Options& options)
      : Rank(group, net_at(group->device()), options) {}
  Rank(const std::shared_ptr<ProcessGroup>& group, const std::shared_ptr<Net>& model,
       const Options& options)
      : EngineRank(group, model, make_plan(*model), options) {}
  static std::shared_ptr<Net> net_at(at::Device device) {
    std::shared_ptr<Net> made = prepare(subject("OddMlp").make(), at::kFloat, 3);
    made->to(device);
    return made;
  }
  static Options scaled_options_of(const Configuration& configuration,
                                   const std::optional<LossScale>& scale) {
    Options options = small_options_of(configuration);
    options.loss_scale = scale;
    return options;
  }
};

class OffloadedEngine : public ::testing::TestWithParam<std::tuple<Configuration, int>> {
 protected:
  const Configuration& configuration() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  void SetUp() override {
    if (size() > most_rank_threads()) GTEST_SKIP() << "needs " << size() << " GPUs";
  }
};

TEST_P(OffloadedEngine, NamesRankAndParameterOfWhatIsNotFinite) {
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> group) {
    const Rank rank(std::move(group), configuration());
    rank.train(0);
    const int guilty = size() - 1;
    const at::Tensor loss = rank.loss(1);
    (rank.world->rank() == guilty ? loss * std::numeric_limits<double>::quiet_NaN() : loss)
        .backward();
    EXPECT_THAT([&] { rank.engine->step(); }, ThrowsMessage<c10::Error>(::testing::AllOf(
                                                  HasSubstr("rank " + std::to_string(guilty)),
                                                  HasSubstr(rank.engine->parameters()[0].name))));
    rank.engine->zero_grad();
    EXPECT_TRUE(rank.train(1).committed);  // the counters were reset
  });
}

TEST_P(OffloadedEngine, SkipsUnderALossScale) {
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> group) {
    const Rank rank(std::move(group), configuration(), LossScale{.initial = 1024});
    EXPECT_TRUE(rank.train(0).committed);
    const uint64_t before = parameter_hash(*rank.engine);
    (rank.loss(1) * std::numeric_limits<double>::infinity()).backward();
    EXPECT_FALSE(rank.engine->step().committed);
    EXPECT_EQ(parameter_hash(*rank.engine), before);
    EXPECT_EQ(rank.engine->loss_scale(), 512);
    EXPECT_TRUE(rank.train(2).committed);
    EXPECT_NE(parameter_hash(*rank.engine), before);
  });
}

TEST_P(OffloadedEngine, TakesWrittenParametersAndDropsGradients) {
  std::vector<uint64_t> hashes;
  std::mutex mutex;
  for (const bool offloads : {true, false}) {
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> group) {
      const Rank rank(std::move(group), offloads ? configuration() : resident(configuration()));
      rank.train(0);
      rank.engine->modify_parameters(0, [&] {
        const at::NoGradGuard no_grad;
        for (const auto& parameter : rank.net->parameters()) parameter.mul_(0.5);
      });
      rank.loss(1).backward();
      rank.engine->zero_grad();
      rank.train(2);
      rank.loss(3).backward();
      rank.train(4);  // the second of two micro-steps
      const auto whole = rank.engine->full_parameters();
      const std::lock_guard lock(mutex);
      for (const auto& parameter : rank.net->parameters()) {
        hashes.push_back(
            static_cast<uint64_t>(parameter.detach().cpu().sum().item<double>() * (1 << 20)));
      }
    });
  }
  const size_t half = hashes.size() / 2;
  EXPECT_EQ(std::vector(hashes.begin(), hashes.begin() + static_cast<int64_t>(half)),
            std::vector(hashes.begin() + static_cast<int64_t>(half), hashes.end()));
}

/// A state is loaded into a run that keeps data elsewhere, and training continues with the same
/// bits.
TEST_P(OffloadedEngine, ContinuesAResidentRunAndTheOtherWayRound) {
  for (const bool begins_offloaded : {true, false}) {
    run_ranks(size(), [&](const std::shared_ptr<ProcessGroup>& group) {
      const Configuration offloaded = configuration();
      const Configuration on_device = resident(configuration());
      const Rank first(duplicate(*group, "first"), begins_offloaded ? offloaded : on_device);
      for (int step = 0; step < 2; ++step) first.train(step);
      const StateDict state = first.engine->state_dict(StateScope::kEveryRank, 0);
      const Rank second(duplicate(*group, "second"), begins_offloaded ? on_device : offloaded);
      second.train(7);
      second.engine->load_state_dict(state);
      EXPECT_EQ(parameter_hash(*second.engine), parameter_hash(*first.engine));
      for (int step = 2; step < 4; ++step) {
        first.train(step);
        second.train(step);
      }
      EXPECT_EQ(parameter_hash(*second.engine), parameter_hash(*first.engine));
    });
  }
}

/// Checks the tensors themselves, not the engine's report.
TEST_P(OffloadedEngine, KeepsStateInPinnedMemory) {
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> group) {
    const Rank rank(std::move(group), configuration());
    rank.train(0);
    struct Moments final : StateSink {
      void begin(const std::vector<StateOutline>& of) override { entries = of; }
      void write(size_t entry, int64_t, const at::Tensor& values) override {
        if (entries[entry].name.find(".exp_avg") == std::string::npos) return;
        EXPECT_TRUE(values.is_pinned()) << entries[entry].name;
        ++count;
      }
      std::vector<StateOutline> entries;
      int64_t count = 0;
    } moments;
    rank.engine->write_state(moments);
    EXPECT_GT(moments.count, 0);
  });
}

/// The bytes that LibTorch has allocated on GPU 0.
int64_t allocated_bytes() {
  constexpr size_t kAll = 0;
  return at::accelerator::getDeviceStats(0).allocated_bytes[kAll].current;
}

/// The bytes that training keeps on the device in addition to the model, in a world of one.
int64_t bytes_on_device(const Configuration& configuration) {
  int64_t bytes = 0;
  run_ranks(1, [&](std::shared_ptr<ProcessGroup> group) {
    const int64_t before = allocated_bytes();
    const Rank rank(std::move(group), configuration, {}, alone());
    rank.train(0);
    bytes = allocated_bytes() - before;
  });
  return bytes;
}

/// Nothing waits for the device before step() needs the gradients. A world of one, because staged
/// collectives wait.
TEST(PretendOffload, WaitsForNothingInBackward) {
  for (const Configuration& configuration : offloading_configurations()) {
    SCOPED_TRACE(configuration.name);
    run_ranks(1, [&](std::shared_ptr<ProcessGroup> group) {
      const Rank rank(std::move(group), configuration, {}, alone());
      rank.train(0);
      rank.train(1);
      const at::Tensor loss = rank.loss(2);
      const int64_t before = fake_gpu()->host_syncs();
      loss.backward();
      EXPECT_EQ(fake_gpu()->host_syncs(), before);
      rank.engine->step();
      EXPECT_GT(fake_gpu()->host_syncs(), before);
    });
  }
}

TEST(Offload, TakesLessOfTheDevice) {
  for (const Configuration& configuration : offloading_configurations()) {
    SCOPED_TRACE(configuration.name);
    int64_t elements = 0;
    for (const auto& parameter : subject("OddMlp").make()->parameters()) {
      elements += parameter.numel();
    }
    constexpr int64_t kMomentsBytes = 8;
    EXPECT_LE(bytes_on_device(configuration) + elements * kMomentsBytes,
              bytes_on_device(resident(configuration)));
  }
}

TEST(Offload, IsRefusedWhereItCannotBe) {
  constexpr int kWorld = 4;
  if (kWorld > most_rank_threads()) GTEST_SKIP() << "needs " << kWorld << " GPUs";
  run_ranks(kWorld, [&](std::shared_ptr<ProcessGroup> group) {
    const auto refused = [&](const Configuration& configuration, const std::string& text) {
      EXPECT_THAT([&] { const Rank rank(group, configuration); },
                  ThrowsMessage<c10::Error>(HasSubstr(text)));
    };
    refused(offloading(configuration_of(Strategy::kZero2), Offload::kParameters),
            "[options] offload: got parameters, but strategy zero2 keeps them whole");
    refused(offloading(hybrid(2, 4, 4), Offload::kParameters),
            "let a rank update only a part of its parameter shard");
    Configuration late = offloading(configuration_of(Strategy::kDdp), Offload::kOptimizer);
    late.asynchronous_step = true;
    refused(late, "asynchronous_step");
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, OffloadedEngine,
                         ::testing::Combine(::testing::ValuesIn(offloading_configurations()),
                                            ::testing::Values(1, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_World" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tessera::internal::testing
