// Scenarios of PyTorch's suites for DistributedDataParallel that no other file covers; each has the
// number of the table in docs/testing.md.
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/comm_hook.h"
#include "tessera/report.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

namespace tessera::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor input_of(int rank, int step, int64_t rows = 2) {
  return at::linspace(-1.0, 1.0, rows * 7, at::kDouble).reshape({rows, 7}) * (1 + step) +
         0.1 * rank;
}

/// Two heads over one body, and a parameter that is never used.
struct TwoHeads : torch::nn::Module {
  explicit TwoHeads(double first_value = 0.1) {
    body = register_module("body", torch::nn::Linear(7, 5));
    left = register_module("left", torch::nn::Linear(5, 3));
    right = register_module("right", torch::nn::Linear(5, 3));
    spare = register_parameter("spare", at::ones({4}));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) parameter.fill_(first_value += 0.05);
  }
  struct Output {
    at::Tensor left, right;
  };
  Output forward(const at::Tensor& input) {
    const at::Tensor hidden = torch::tanh(body(input));
    return {left(hidden), right(hidden)};
  }

  torch::nn::Linear body{nullptr}, left{nullptr}, right{nullptr};
  at::Tensor spare;
};

struct HeadsRank : EngineRank<TwoHeads> {
  HeadsRank(std::shared_ptr<ProcessGroup> group, const Options& options)
      : EngineRank(std::move(group), std::make_shared<TwoHeads>(), adamw(), options) {}
  at::Tensor loss(int step) const override { return loss_of(step, world->rank()); }
  at::Tensor loss_of(int step, int rank) const {
    const TwoHeads::Output output = net->forward(input_of(rank, step));
    return (output.left.pow(2) + output.right).mean();
  }
};

/// Trains in one process with `loss` of all ranks.
std::vector<at::Tensor> trained_plainly(const std::function<at::Tensor(TwoHeads&, int step)>& loss,
                                        int steps) {
  TwoHeads net;
  torch::optim::AdamW optimizer(net.parameters(), adamw());
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss(net, step).backward();
    optimizer.step();
  }
  return net.parameters();
}

void expect_close(const HeadsRank& rank, const std::vector<at::Tensor>& expected) {
  const auto whole = rank.engine->full_parameters();
  const auto names = rank.net->named_parameters();
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_TRUE(at::allclose(names[i].value(), expected[i], 1e-10, 1e-12)) << names[i].key();
  }
}

class DdpScenarios : public ::testing::TestWithParam<std::pair<Configuration, int>> {
 protected:
  Options options() const { return small_options_of(GetParam().first); }
  int size() const { return GetParam().second; }
  void on_ranks(const std::function<void(HeadsRank&)>& body) const {
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
      HeadsRank rank(std::move(world), options());
      body(rank);
    });
  }
};

TEST_P(DdpScenarios, Scenario13_AModelWithoutParametersIsRefusedAndAFrozenOneIsNot) {
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
    const auto empty = std::make_shared<torch::nn::ReLUImpl>();
    const std::string refusal = message_of([&] { parallelize(empty, adamw(), options(), world); });
    const auto frozen = std::make_shared<TwoHeads>();
    for (const at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    const std::string of_frozen = message_of([&] {
      const auto engine = parallelize(frozen, adamw(), options(), world);
      EXPECT_THAT(message_of([&] { engine->step(); }), HasSubstr("backward"));
      EXPECT_NE(engine->gather(*frozen), nullptr);
      const torch::nn::Linear other(2, 2);
      EXPECT_THAT(message_of([&] { (void)engine->gather(*other); }),
                  HasSubstr("got a module 'torch::nn::LinearImpl' without parameters of this"));
    });
    EXPECT_EQ(refusal, kNothingThrown);
    EXPECT_EQ(of_frozen, kNothingThrown);
  });
}

TEST_P(DdpScenarios, Scenario16_NoSyncIsTheLargeBatchWhereverForwardRuns) {
  const int ranks = size();
  const auto expected = trained_plainly(
      [ranks](TwoHeads& net, int step) {
        at::Tensor sum = at::zeros({}, at::kDouble);
        for (int rank = 0; rank < ranks; ++rank) {
          for (int micro = 0; micro < 3; ++micro) {
            const TwoHeads::Output output = net.forward(input_of(rank, 3 * step + micro));
            sum = sum + (output.left.pow(2) + output.right).mean();
          }
        }
        return sum / ranks;
      },
      2);
  on_ranks([&](HeadsRank& rank) {
    for (int step = 0; step < 2; ++step) {
      const at::Tensor outside = rank.loss(3 * step);  // PyTorch would reduce its gradients
      {
        const auto local = rank.engine->no_sync();
        outside.backward();
        rank.backward(3 * step + 1);
      }
      std::optional<Engine::NoSync> local(rank.engine->no_sync());
      const at::Tensor inside = rank.loss(3 * step + 2);  // PyTorch would not reduce its gradients
      local.reset();
      inside.backward();
      rank.engine->step();
      EXPECT_EQ(rank.engine->report().memory.micro_steps, 1) << "reduced once";
    }
    expect_close(rank, expected);
  });
}

TEST_P(DdpScenarios, Scenario18_UnusedParametersAreNoErrorAndAreNamed) {
  const int ranks = size();
  const auto expected = trained_plainly(
      [ranks](TwoHeads& net, int step) {
        at::Tensor sum = at::zeros({}, at::kDouble);
        for (int rank = 0; rank < ranks; ++rank) {
          const TwoHeads::Output output = net.forward(input_of(rank, step));
          sum = sum + (rank == 0 ? output.left.pow(2).mean() : 0 * output.left.sum());
        }
        return sum / ranks;
      },
      3);
  on_ranks([&](HeadsRank& rank) {
    for (int step = 0; step < 3; ++step) {
      // Rank 0 uses one head, the others use nothing.
      const TwoHeads::Output output = rank.net->forward(input_of(rank.world->rank(), step));
      const at::Tensor loss = rank.world->rank() == 0 ? output.left.pow(2).mean()
                                                      : 0 * rank.net->body(input_of(1, step)).sum();
      loss.backward();
      EXPECT_EQ(rank.engine->step().used_parameters, 4);
      EXPECT_THAT(rank.engine->report().unused_parameters,
                  ElementsAre("spare", "right.weight", "right.bias"));
    }
    expect_close(rank, expected);
  });
}

TEST_P(DdpScenarios, Scenario22_OutputsThatALossLeavesOutHangNobody) {
  const int ranks = size();
  const auto loss_of_rank = [](TwoHeads& net, int rank, int step) {
    const TwoHeads::Output output = net.forward(input_of(rank, step));
    switch ((rank + step) % 3) {  // both, one, the other
      case 0:
        return (output.left + output.right).pow(2).mean();
      case 1:
        return output.left.pow(2).mean();
      default:
        return output.right.pow(2).mean();
    }
  };
  const auto expected = trained_plainly(
      [&](TwoHeads& net, int step) {
        at::Tensor sum = at::zeros({}, at::kDouble);
        for (int rank = 0; rank < ranks; ++rank) sum = sum + loss_of_rank(net, rank, step);
        return sum / ranks;
      },
      1);
  on_ranks([&](HeadsRank& rank) {
    loss_of_rank(*rank.net, rank.world->rank(), 0).backward();
    rank.engine->step();
    expect_close(rank, expected);
    for (int step = 1; step < 4; ++step) {
      loss_of_rank(*rank.net, rank.world->rank(), step).backward();
      rank.engine->step();
    }
    EXPECT_NO_THROW(parameter_hash(*rank.engine));
  });
}

INSTANTIATE_TEST_SUITE_P(All, DdpScenarios, configurations_and_worlds(), name_of);

/// OddMlp's parameters after `steps`, and every rank's units.
struct Ordered {
  uint64_t hash = 0;
  std::vector<std::vector<std::string>> units;
};
Ordered train_in_order(int64_t bucket_bytes, int steps) {
  Ordered ordered;
  std::mutex mutex;
  std::vector<std::vector<std::vector<std::string>>> of_ranks;
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
    Options options;
    options.bucket_bytes = {bucket_bytes};
    const Subject& mixed = subject("RankOrder");  // each rank's backward has another order
    const std::shared_ptr<Net> net = prepare(mixed.make(), at::kFloat, 3);
    const auto engine = parallelize(net, adamw(), options, world);
    const Schedule schedule{.name = ""};
    for (int step = 0; step < steps; ++step) {
      const Moment moment{.step = step, .rank = world->rank()};
      loss_of(*net, batch_of(mixed, at::kFloat, schedule, moment, 0), moment, schedule).backward();
      engine->step();
    }
    const uint64_t hash = parameter_hash(*engine);
    std::vector<std::vector<std::string>> units;
    for (const Report::Unit& unit : engine->report().units) units.push_back(unit.parameters);
    const std::lock_guard lock(mutex);
    ordered.hash = hash;
    of_ranks.push_back(std::move(units));
  });
  EXPECT_EQ(of_ranks[0], of_ranks[1]);
  EXPECT_EQ(of_ranks[0], of_ranks[2]);
  ordered.units = of_ranks[0];
  return ordered;
}

TEST(DdpBuckets, Scenario15_HaveOneOrderOnAllRanksWhichChangesNoBit) {
  const Ordered one = train_in_order(int64_t{1} << 20, 4);
  const Ordered many = train_in_order(1024, 4);
  EXPECT_EQ(one.units.size(), 1u);
  EXPECT_GT(many.units.size(), 1u);
  EXPECT_EQ(one.hash, many.hash);
  EXPECT_NE(one.hash, train_in_order(1024, 3).hash) << "the control";
}

TEST(DdpBuffers, Scenario23_TwoForwardsOfAModelWithBatchNormBeforeTheirBackwards) {
  for (const BufferSync sync : {BufferSync::kOnce, BufferSync::kBroadcast, BufferSync::kMean}) {
    run_ranks(3, [sync](std::shared_ptr<ProcessGroup> world) {
      const auto net = std::make_shared<torch::nn::SequentialImpl>(
          torch::nn::Linear(7, 5), torch::nn::BatchNorm1d(5), torch::nn::Linear(5, 3));
      const auto engine = parallelize(net, adamw(), {.buffers = sync}, world);
      const int rank = world->rank();
      for (int step = 0; step < 2; ++step) {
        const at::Tensor first = net->forward(input_of(rank, step, 4).to(at::kFloat)).sum();
        const at::Tensor second = net->forward(input_of(rank, 9, 5).to(at::kFloat)).pow(2).sum();
        EXPECT_NO_THROW((first + second).backward());
        EXPECT_TRUE(engine->step().committed);
      }
    });
  }
}

TEST(DdpCommHooks, Scenario24_HooksMayCallHooks) {
  std::map<bool, uint64_t> hashes;
  for (const bool has_hook : {false, true}) {
    run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
      HeadsRank rank(world, small_options_of(configuration_of(Strategy::kDdp)));
      int last = 0;
      if (has_hook) {
        const auto inner = all_reduce_hook();
        rank.engine->register_comm_hook(
            make_comm_hook("doubled", [&, inner](const GradBucket& bucket, ProcessGroup& group) {
              last += bucket.is_last ? 1 : 0;
              bucket.buffer.mul_(2);
              return inner->run(bucket, group).div_(2);
            }));
      }
      for (int step = 0; step < 3; ++step) rank.train(step);
      EXPECT_EQ(last, has_hook ? 3 : 0) << "once per backward";
      const uint64_t hash = parameter_hash(*rank.engine);
      if (world->rank() == 0) hashes[has_hook] = hash;
    });
  }
  EXPECT_EQ(hashes[false], hashes[true]);
}

TEST(DdpJoin, Scenario31_UnusedParametersAndHooksInALoopThatRanksLeaveOneByOne) {
  std::map<bool, uint64_t> hashes;
  for (const bool has_hook : {false, true}) {
    run_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
      HeadsRank rank(world, small_options_of(configuration_of(Strategy::kDdp)));
      if (has_hook) rank.engine->register_comm_hook(all_reduce_hook());
      std::vector<int> batches(static_cast<size_t>(2 * world->rank()));  // 0, 2 and 4
      for (size_t i = 0; i < batches.size(); ++i) batches[i] = static_cast<int>(i);
      for (const int batch : rank.engine->join(batches)) {
        // One head only, so that the other is unused both on ranks that follow and on those that
        // lead.
        rank.net->forward(input_of(world->rank(), batch)).left.pow(2).mean().backward();
        rank.engine->step();
      }
      EXPECT_EQ(rank.engine->steps(), 4);
      EXPECT_THAT(rank.engine->report().unused_parameters,
                  ElementsAre("spare", "right.weight", "right.bias"));
      const uint64_t hash = parameter_hash(*rank.engine);
      if (world->rank() == 0) hashes[has_hook] = hash;
    });
  }
  EXPECT_EQ(hashes[false], hashes[true]);
}

}  // namespace
}  // namespace tessera::internal::testing
