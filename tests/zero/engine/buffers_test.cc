#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/sync_batch_norm.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Options::buffers and ignores_buffers: how steps treat tensors that modules register but do not
// train.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two layers, a BatchNorm between them, and many kinds of buffers that forward writes.
struct BufferedNet : torch::nn::Module {
  explicit BufferedNet(double value) {
    first = register_module("first", torch::nn::Linear(7, 5));
    norm = register_module("norm", torch::nn::BatchNorm1d(5));
    second = register_module("second", torch::nn::Linear(5, 3));
    to(at::kDouble);
    const auto add = [&](const char* name, const at::Tensor& tensor) {
      written.push_back(register_buffer(name, tensor));
    };
    add("seen", at::full({}, value, at::kLong));
    add("half", at::full({3}, value, at::kHalf));
    add("bfloat", at::full({2, 3}, value, at::kBFloat16));
    add("single", at::full({5}, value, at::kFloat));
    add("turned", at::full({3, 2}, value, at::kFloat).t());
    add("wide", at::full({1, 4}, value, at::kFloat).expand({3, 4}));
    add("complex", at::full({2}, value, at::kComplexFloat));
    register_buffer("flag", at::full({3}, value > 1.0, at::kBool));
    register_buffer("none", at::empty({0}));
    auto generator = at::detail::createCPUGenerator(/*seed=*/3);  // ranks are threads
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters()) {
      parameter.copy_(at::randn(parameter.sizes(), generator, at::kDouble));
    }
  }
  /// Writes `value` into all buffers except BatchNorm's.
  at::Tensor forward(const at::Tensor& input, double value) {
    for (const at::Tensor& buffer : written) buffer.detach().copy_(at::full_like(buffer, value));
    return second(torch::relu(norm(first(input)))).pow(2).sum();
  }

  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear second{nullptr};
  std::vector<at::Tensor> written;
};

std::map<std::string, at::Tensor> copy_buffers(const torch::nn::Module& model) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& entry : model.named_buffers()) copies[entry.key()] = entry.value().clone();
  return copies;
}

double first_of(const at::Tensor& tensor) { return at::real(tensor.flatten()[0]).item<double>(); }

at::Tensor rows_of(int rank, int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 * step + rank));
  return at::randn({4, 7}, generator, at::kDouble);
}

struct BufferRank {
  BufferRank(std::shared_ptr<ProcessGroup> group, Options options,
             const std::function<void(BufferedNet&)>& change = {})
      : world(std::move(group)) {
    net = std::make_shared<BufferedNet>(1.0 + world->rank());
    if (change) change(*net);
    engine = parallelize(net, adamw(), options, world);
  }
  void backward(int step) const {
    net->forward(rows_of(world->rank(), step), 10.0 * world->rank() + step).backward();
  }
  StepResult train(int step) const {
    backward(step);
    return engine->step();
  }
  at::Tensor buffer(const std::string& name) const { return net->named_buffers()[name]; }

  std::shared_ptr<ProcessGroup> world;
  std::shared_ptr<BufferedNet> net;
  std::unique_ptr<Engine> engine;
};

class BufferSyncTest : public ::testing::TestWithParam<std::pair<Configuration, int>> {
 protected:
  Options options(BufferSync sync) const {
    Options options = small_options_of(GetParam().first);
    options.buffers = sync;
    return options;
  }
  int size() const { return GetParam().second; }
};

TEST_P(BufferSyncTest, LeavesThemOrGivesRank0sOrTheMean) {
  for (const BufferSync sync : {BufferSync::kOnce, BufferSync::kBroadcast, BufferSync::kMean}) {
    SCOPED_TRACE(to_string(sync));
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
      const BufferRank rank(std::move(world), options(sync));
      const int own = rank.world->rank();
      EXPECT_FALSE(rank.buffer("flag")[0].item<bool>()) << "rank 0's at parallelize";
      for (const int step : {1, 2, 3}) {
        rank.backward(step);
        const at::Tensor statistics = rank.net->norm->running_mean.clone();
        rank.engine->step();
        const double mean = 10.0 * (size() - 1) / 2 + step;
        const double expected = sync == BufferSync::kOnce   ? 10.0 * own + step
                                : sync == BufferSync::kMean ? mean
                                                            : step;
        for (const char* name : {"half", "bfloat", "single", "turned", "wide", "complex"}) {
          EXPECT_EQ(first_of(rank.buffer(name)), expected) << name;
        }
        EXPECT_EQ(first_of(rank.buffer("seen")), sync == BufferSync::kOnce ? expected : step)
            << "an integer has no mean";
        EXPECT_EQ(rank.net->norm->num_batches_tracked.item<int64_t>(), step);
        if (size() == 1 || sync == BufferSync::kOnce) {
          EXPECT_TRUE(at::equal(rank.net->norm->running_mean, statistics));
        } else if (own > 0 || sync == BufferSync::kMean) {
          EXPECT_FALSE(at::equal(rank.net->norm->running_mean, statistics));
        }
        at::Tensor sum = statistics.clone();
        rank.world->all_reduce(sum, ReduceOp::kAvg)->wait();
        EXPECT_TRUE(sync != BufferSync::kMean || at::equal(rank.net->norm->running_mean, sum));
      }
    });
  }
}

/// Training does not read running statistics, so the parameters are the same under each option.
TEST_P(BufferSyncTest, ChangesNoParameter) {
  std::vector<uint64_t> hashes;
  for (const BufferSync sync : {BufferSync::kOnce, BufferSync::kBroadcast, BufferSync::kMean}) {
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
      const BufferRank rank(std::move(world), options(sync));
      for (const int step : {1, 2}) rank.train(step);
      const uint64_t hash = parameter_hash(*rank.engine);
      if (rank.world->rank() == 0) hashes.push_back(hash);
    });
  }
  EXPECT_EQ(hashes, std::vector<uint64_t>(3, hashes[0]));
}

INSTANTIATE_TEST_SUITE_P(, BufferSyncTest, configurations_and_worlds(), name_of);

Options ddp_with(BufferSync sync) {
  Options options = small_options_of(configuration_of(Strategy::kZero2));
  options.buffers = sync;
  return options;
}

TEST(BufferSync, IsOneCollectivePerStepOrOnePerDtype) {
  const std::map<BufferSync, std::vector<std::string>> expected = {
      {BufferSync::kOnce, {}},
      {BufferSync::kBroadcast, {"broadcast buffers"}},
      {BufferSync::kMean,
       {"all_reduce mean of buffers", "all_reduce mean of buffers", "all_reduce mean of buffers",
        "all_reduce mean of buffers", "broadcast buffers"}}};
  for (const auto& [sync, calls] : expected) {
    SCOPED_TRACE(to_string(sync));
    run_ranks(3, [&, sync = sync, calls = calls](std::shared_ptr<ProcessGroup> world) {
      const auto recording = std::make_shared<Recording>();
      const BufferRank rank(std::make_shared<RecordingGroup>(std::move(world), recording),
                            ddp_with(sync));
      for (const int micro_steps : {1, 3}) {
        for (int i = 0; i < micro_steps; ++i) rank.backward(i);
        recording->clear();
        rank.engine->step();
        std::vector<std::string> seen;
        for (const RecordedCall& call : recording->calls()) {
          if (call.tag.ends_with("buffers")) seen.push_back(call.op + " " + call.tag);
        }
        EXPECT_EQ(seen, calls) << micro_steps << " micro-steps";
      }
    });
  }
}

TEST(BufferSync, IsCountedAsMemory) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    const auto control = [&](BufferSync sync) {
      return BufferRank(world, ddp_with(sync)).engine->memory().now()[MemoryClass::kControl];
    };
    const int64_t none = control(BufferSync::kOnce);
    // Each buffer's bytes, rounded up to 16.
    EXPECT_EQ(control(BufferSync::kBroadcast) - none,
              48 + 48 + 16 + 16 + 16 + 16 + 32 + 32 + 48 + 16 + 16);
    EXPECT_EQ(control(BufferSync::kMean), control(BufferSync::kBroadcast));
  });
}

TEST(BufferSync, AlsoHappensWhereTheUpdateIsSkippedButNotWhereTheStepIsRefused) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    Options options = ddp_with(BufferSync::kBroadcast);
    options.on_non_finite = NonFinite::kSkip;
    const BufferRank rank(std::move(world), options);
    const int own = rank.world->rank();
    (rank.net->forward(rows_of(own, 1), own + 5) * (own == 1 ? NAN : 1.0)).backward();
    EXPECT_FALSE(rank.engine->step().committed);
    EXPECT_EQ(first_of(rank.buffer("single")), 5.0);
    rank.net->forward(rows_of(own, 1), own + 7).backward();
    {
      const auto whole = own == 2 ? rank.engine->gather(*rank.net) : nullptr;
      EXPECT_THAT(message_of([&] { rank.engine->step(); }), HasSubstr("scope is open"));
    }
    EXPECT_EQ(first_of(rank.buffer("single")), own + 7.0) << "as before the call";
    rank.engine->step();
    EXPECT_EQ(first_of(rank.buffer("single")), 7.0);
  });
}

/// Graphs that saved a buffer stay valid, because the write does not change its version.
TEST(BufferSync, LeavesOlderGraphsValid) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    const BufferRank rank(std::move(world), ddp_with(BufferSync::kMean));
    const at::Tensor input = at::ones({5}).set_requires_grad(true);
    const at::Tensor older = (input * rank.buffer("single")).sum();
    rank.backward(1);
    const auto version = rank.buffer("single")._version();
    rank.engine->step();
    EXPECT_EQ(rank.buffer("single")._version(), version);
  });
}

TEST(BufferSync, WhatChangedOnARankIsNamedOnAll) {
  const std::vector<std::pair<std::function<void(BufferedNet&)>, std::string>> cases = {
      {[](BufferedNet& net) { net.written[3].resize_({7}); },
       "buffer 'single': got Float [7] on cpu, expected Float [5] on cpu"},
      {[](BufferedNet& net) { net.norm->to(at::kFloat); },
       "buffer 'norm.running_mean': got Float [5] on cpu, expected Double [5] on cpu"},
      {[](BufferedNet& net) { net.register_buffer("later", at::ones({2})); },
       "buffer 'later' was registered after parallelize and is not made equal on all ranks "
       "(Options::buffers)"},
      {[](BufferedNet& net) { net.unregister_module("norm"); },
       "buffers 'norm.running_mean', 'norm.running_var', 'norm.num_batches_tracked' are no longer "
       "registered"},
  };
  for (const auto& [change, text] : cases) {
    SCOPED_TRACE(text);
    for (const BufferSync sync : {BufferSync::kBroadcast, BufferSync::kMean}) {
      const auto errors = run_ranks_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> world) {
        Options options = ddp_with(sync);
        options.ignores = [](std::string_view name) { return name.starts_with("norm."); };
        const BufferRank rank(std::move(world), options);
        rank.backward(1);
        const auto before = copy_buffers(*rank.net);
        if (rank.world->rank() == 1) change(*rank.net);
        const std::string message = message_of([&] { rank.engine->step(); });
        EXPECT_THAT(message, AllOf(HasSubstr("[step] rank 1: "), HasSubstr(text),
                                   HasSubstr("Nothing was applied")));
        if (rank.world->rank() == 1) return;
        for (const auto& [name, value] : copy_buffers(*rank.net)) {
          EXPECT_TRUE(at::equal(value, before.at(name))) << name;
        }
      });
      EXPECT_THAT(errors, Each(IsEmpty()));
    }
  }
}

TEST(BufferSync, BuffersThatComeLaterAreTheUsersOwnWithoutIt) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    const BufferRank rank(std::move(world), ddp_with(BufferSync::kOnce));
    rank.backward(1);
    rank.net->register_buffer("later", at::ones({2}));
    rank.net->written[3].resize_({7});
    EXPECT_TRUE(rank.engine->step().committed);
  });
}

TEST(BufferSync, DifferencesAreRefusedByParallelize) {
  const auto refusal = [](const std::function<void(BufferedNet&, Options&)>& spoil) {
    return run_ranks_expecting_errors(3, [&](const std::shared_ptr<ProcessGroup>& world) {
      Options options = ddp_with(BufferSync::kMean);
      const auto net = std::make_shared<BufferedNet>(1.0);
      if (world->rank() == 2) spoil(*net, options);
      parallelize(net, adamw(), options, world);
    });
  };
  EXPECT_THAT(refusal([](BufferedNet& net, Options&) { net.written[3].resize_({7}); }),
              Each(HasSubstr("'buffer single Float [7]' vs 'buffer single Float [5]'")));
  EXPECT_THAT(
      refusal([](BufferedNet&, Options& options) { options.buffers = BufferSync::kBroadcast; }),
      Each(HasSubstr("'buffers broadcast' vs 'buffers mean'")));
  EXPECT_THAT(refusal([](BufferedNet&, Options& options) {
                options.ignores_buffers = [](std::string_view name) { return name == "single"; };
              }),
              Each(AllOf(HasSubstr("differs from rank 0"), HasSubstr("buffer single Float [5]"))));
  EXPECT_THAT(refusal([](BufferedNet&, Options& options) {
                options.ignores_buffers = [](std::string_view) -> bool {
                  throw std::runtime_error("the predicate's own");
                };
              }),
              Each(AllOf(HasSubstr("rank 2: "), HasSubstr("the predicate's own"))));
}

TEST(IgnoredBuffers, AreNeitherComparedNorMadeEqualNorSaved) {
  for (const BufferSync sync : {BufferSync::kOnce, BufferSync::kBroadcast, BufferSync::kMean}) {
    run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
      const int own = world->rank();
      Options options = ddp_with(sync);
      options.ignores_buffers = [](std::string_view name) { return name.starts_with("queue"); };
      const BufferRank rank(std::move(world), options, [&](BufferedNet& net) {
        net.register_buffer("also_queue", net.register_buffer("queue", at::full({own + 1}, own)));
      });
      EXPECT_EQ(rank.buffer("queue").sizes(), at::IntArrayRef({own + 1}));
      EXPECT_EQ(first_of(rank.buffer("queue")), own);
      rank.buffer("queue").fill_(own + 4);
      rank.train(1);
      rank.net->register_buffer("queue_of_later", at::ones({2}));
      rank.buffer("queue").resize_({9});
      rank.train(2);
      EXPECT_EQ(first_of(rank.buffer("queue")), own + 4);
      const StateDict state = rank.engine->state_dict(StateScope::kEveryRank);
      EXPECT_EQ(state.entries.count("model.queue"), 0u);
      EXPECT_EQ(state.entries.count("model.also_queue"), 0u);
      EXPECT_EQ(state.entries.count("model.single"), 1u);
      rank.engine->load_state_dict(state);
    });
  }
}

/// A state has rank 0's buffers; after loading it all ranks have them, and training continues.
TEST(BufferSync, GoesOnFromAState) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    StateDict state;
    std::map<std::string, at::Tensor> expected;
    {
      const BufferRank rank(world, ddp_with(BufferSync::kMean));
      for (const int step : {1, 2}) rank.train(step);
      state = rank.engine->state_dict(StateScope::kEveryRank);
      rank.train(3);
      expected = copy_buffers(*rank.net);
    }
    const BufferRank rank(world, ddp_with(BufferSync::kMean));
    rank.engine->load_state_dict(state);
    rank.train(3);
    for (const auto& [name, value] : copy_buffers(*rank.net)) {
      EXPECT_TRUE(at::equal(value, expected.at(name))) << name;
    }
  });
}

/// A new engine is built in the model's memory and continues with its buffers.
TEST(BufferSync, GoesOnWhenWhatTrainsChanges) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> world) {
    const BufferRank rank(std::move(world), ddp_with(BufferSync::kBroadcast));
    rank.train(1);
    rank.engine->set_trainable(
        [](std::string_view name, const at::Tensor&) { return name.starts_with("second"); });
    rank.train(2);
    EXPECT_EQ(first_of(rank.buffer("single")), 2.0);
  });
}

TEST(RequiresSyncBatchNorm, RefusesBatchNormByNameOnAllRanks) {
  const auto errors = run_ranks_expecting_errors(2, [](std::shared_ptr<ProcessGroup> world) {
    Options options = ddp_with(BufferSync::kOnce);
    options.requires_sync_batch_norm = true;
    const BufferRank rank(std::move(world), options);
  });
  EXPECT_THAT(
      errors,
      Each(AllOf(HasSubstr("[options] requires_sync_batch_norm: is set, but module 'norm' is "
                           "a torch::nn::BatchNorm1d"),
                 HasSubstr("tessera::nn::SyncBatchNorm1d"), HasSubstr("all ranks"))));
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    Options options = ddp_with(BufferSync::kOnce);
    options.requires_sync_batch_norm = true;
    torch::nn::Sequential model(torch::nn::Linear(3, 4), tessera::nn::SyncBatchNorm1d(4, world));
    EXPECT_NO_THROW(parallelize(*model, adamw(), options, world)) << "the control";
  });
}

}  // namespace
}  // namespace tessera::internal::testing
