#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/core/comm/groups/loopback_group.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Schedulers, reading and writing of parameters, and the end of an engine.

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class EngineUse : public EngineTest {};
/// A destroyed engine leaves its parameters whole, or unreadable if they were split.
using EngineUseOfWholeParameters = EngineUse;
using EngineUseOfSplitParameters = EngineUse;

TEST_P(EngineUse, SaysWhatTheStepDid) {
  on_ranks([](Rank& rank) {
    for (int step = 0; step < 3; ++step) {
      const StepResult result = rank.train(step);
      EXPECT_TRUE(result.committed);
      EXPECT_EQ(result.step, step + 1);
      EXPECT_EQ(result.used_parameters, 6);
      EXPECT_GT(result.grad_norm, 0.0);
    }
  });
}

/// Only backward needs the thread that made the engine.
TEST_P(EngineUse, AnyThreadMayCallItBetweenBackwards) {
  on_ranks([this](Rank& rank) {
    Rank other(rank.world, configuration());
    for (int step = 0; step < 2; ++step) {
      rank.train(step);
      other.backward(step);
      StepResult result;
      std::thread([&] { result = other.engine->step(); }).join();
      EXPECT_TRUE(result.committed);
    }
    uint64_t hash = 0;
    std::thread([&] { hash = parameter_hash(*other.engine); }).join();
    EXPECT_EQ(hash, parameter_hash(*rank.engine));
  });
}

TEST_P(EngineUse, NoThreadMayCallItDuringABackward) {
  on_ranks([](Rank& rank) {
    std::string message;
    const at::Tensor loss = rank.loss(0);
    loss.register_hook([&](const at::Tensor&) {  // before the first gradient of a parameter
      std::thread([&] { message = message_of([&] { rank.engine->step(); }); }).join();
    });
    (loss * 1.0).backward();
    EXPECT_THAT(message, HasSubstr("[engine] step: called inside backward; call it after"));
    EXPECT_TRUE(rank.engine->step().committed);
  });
}

TEST_P(EngineUse, FollowsATorchScheduler) {
  on_ranks([this](Rank& rank) {
    const std::shared_ptr<Net> plain = make_net();
    torch::optim::AdamW optimizer = plain_optimizer(*plain, adamw());
    torch::optim::StepLR plain_schedule(optimizer, 2, 0.1);
    torch::optim::StepLR schedule(rank.engine->optimizer(), 2, 0.1);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      for (int i = 0; i < size(); ++i) (loss_on(*plain, i, step) / size()).backward();
      optimizer.step();
      plain_schedule.step();
      rank.train(step);
      schedule.step();
    }
    EXPECT_DOUBLE_EQ(rank.engine->optimizer().param_groups()[0].options().get_lr(), 0.0002);
    EXPECT_EQ(differences(copy_parameters(*rank.net), copy_parameters(*plain), 1e-12), "");
  });
}

TEST_P(EngineUse, ModifiesParametersOnAllRanksAlike) {
  on_ranks([this](Rank& rank) {
    rank.train(0);
    const int from_rank = size() - 1;
    rank.engine->modify_parameters(from_rank, [&] {
      for (const at::Tensor& parameter : rank.net->parameters()) {
        parameter.fill_(rank.world->rank() + 0.5);
      }
    });
    for (const at::Tensor& parameter : rank.net->parameters()) {
      EXPECT_TRUE(at::equal(parameter, at::full_like(parameter, from_rank + 0.5)));
    }
    EXPECT_TRUE(rank.train(1).committed);
  });
}

TEST_P(EngineUse, AGraphFromBeforeTheStepFailsInsteadOfUsingNewValues) {
  on_ranks([](Rank& rank) {
    const at::Tensor stale = rank.loss(0);
    rank.train(0);
    EXPECT_THAT([&] { stale.backward(); },
                ThrowsMessage<std::exception>(HasSubstr("modified by an inplace operation")));
  });
}

TEST_P(EngineUse, FullParametersAreReadableByAnyMeans) {
  on_ranks([](Rank& rank) {
    rank.train(0);
    const auto whole = rank.engine->full_parameters();
    for (const at::Tensor& parameter : rank.net->parameters()) {
      EXPECT_TRUE(std::isfinite(*parameter.const_data_ptr<double>()));
    }
  });
}

/// Equal values have equal hashes, whatever the strategy and the number of ranks.
TEST_P(EngineUse, TheHashDependsOnValuesOnly) {
  const auto write = [](Rank& rank) {
    rank.train(0);
    rank.engine->modify_parameters(0, [&] {
      for (const at::Tensor& parameter : rank.net->parameters()) parameter.fill_(0.25);
    });
    return parameter_hash(*rank.engine);
  };
  Rank one(std::make_shared<LoopbackGroup>(), configuration_of(Strategy::kDdp));
  const uint64_t expected = write(one);
  on_ranks([&](Rank& rank) {
    EXPECT_EQ(write(rank), expected);
    rank.engine->modify_parameters(0, [&] { rank.net->parameters()[1].view(-1)[0].add_(1e-9); });
    EXPECT_NE(parameter_hash(*rank.engine), expected);
  });
}

/// The error for reading a parameter after the engine that could gather it was destroyed.
auto says_that_the_engine_is_gone() {
  return ThrowsMessage<c10::Error>(HasSubstr("the engine that could gather them is gone"));
}

TEST_P(EngineUseOfWholeParameters, EndsWithParametersThatPlainTorchTrains) {
  on_ranks([](Rank& rank) {
    rank.train(0);
    const auto before = copy_parameters(*rank.net);
    rank.loss(1).backward();  // the engine's gradients are shown when it ends
    rank.engine.reset();
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), before), "");

    const std::shared_ptr<Net> plain = make_net();
    {
      const at::NoGradGuard no_grad;
      for (const auto& entry : plain->named_parameters())
        entry.value().copy_(before.at(entry.key()));
    }
    torch::optim::AdamW freed(rank.net->parameters(), adamw());
    torch::optim::AdamW expected(plain->parameters(), adamw());
    for (int step = 0; step < 2; ++step) {
      for (const auto& [net, optimizer] :
           {std::pair(rank.net, &freed), std::pair(plain, &expected)}) {
        optimizer->zero_grad();
        loss_on(*net, rank.world->rank(), step).backward();
        optimizer->step();
      }
    }
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), copy_parameters(*plain)), "");
  });
}

/// Split parameters become unreadable with the end of their engine, but a copy that was taken
/// before can be written back.
TEST_P(EngineUseOfSplitParameters, EndsWithParametersThatThrow) {
  on_ranks([this](Rank& rank) {
    rank.train(0);
    const at::Tensor weight = rank.net->parameters()[0];
    const auto values = copy_parameters(*rank.net);
    const at::Tensor loss = rank.loss(1);
    rank.engine.reset();
    EXPECT_THAT([&] { weight.sum(); }, says_that_the_engine_is_gone());
    EXPECT_THAT([&] { weight.data_ptr(); }, says_that_the_engine_is_gone());
    EXPECT_THAT([&] { loss.backward(); }, says_that_the_engine_is_gone());
    EXPECT_THAT(
        [&] { parallelize(rank.net, adamw(), small_options_of(configuration()), rank.world); },
        says_that_the_engine_is_gone());
    for (const auto& entry : rank.net->named_parameters()) {
      entry.value().mutable_grad().reset();
      entry.value().set_data(values.at(entry.key()).clone());
    }
    rank.engine = parallelize(rank.net, adamw(), small_options_of(configuration()), rank.world);
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), values), "");
    EXPECT_TRUE(rank.train(2).committed);
  });
}

TEST_P(EngineUseOfWholeParameters, ASecondEngineTakesTheModelOver) {
  on_ranks([this](Rank& rank) {
    rank.train(0);
    rank.engine.reset();
    Rank reference(rank.world, configuration());
    {
      const auto values = copy_parameters(*rank.net);
      reference.engine->modify_parameters(0, [&] {
        for (const auto& entry : reference.net->named_parameters()) {
          entry.value().copy_(values.at(entry.key()));
        }
      });
    }
    rank.engine = parallelize(rank.net, adamw(), small_options_of(configuration()), rank.world);
    for (int step = 1; step < 3; ++step) {
      EXPECT_EQ(rank.train(step).grad_norm, reference.train(step).grad_norm);
    }
    EXPECT_EQ(bit_differences(copy_parameters(*rank.net), copy_parameters(*reference.net)), "");
  });
}

// In a world of one nobody waits for the rank; the error does not affect the next engine.
TEST(EngineAlone, AnExceptionInBackwardEndsThatEngineOnly) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    const auto world = std::make_shared<LoopbackGroup>();
    const auto broken = make_net();
    {
      const auto engine = parallelize(broken, adamw(), {.strategy = strategy}, world);
      const at::Tensor loss = loss_on(*broken, 0, 0);
      loss.register_hook(
          [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a hook broke"); });
      EXPECT_ANY_THROW(loss.backward());
    }
    const auto net = make_net();
    const auto engine = parallelize(net, adamw(), {.strategy = strategy}, world);
    loss_on(*net, 0, 0).backward();
    EXPECT_TRUE(engine->step().committed);
  }
}

TEST_P(EngineUse, KeepsASharedModelAlive) {
  on_ranks([](Rank& rank) {
    const at::Tensor loss = rank.loss(0);
    const std::weak_ptr<Net> model = rank.net;
    rank.net.reset();
    EXPECT_FALSE(model.expired());
    loss.backward();
    EXPECT_TRUE(rank.engine->step().committed);
    rank.engine.reset();
    EXPECT_TRUE(model.expired());
  });
}

TEST_P(EngineUseOfWholeParameters, AParameterOutlivesModelAndEngine) {
  on_ranks([](Rank& rank) {
    rank.train(0);
    const at::Tensor weight = rank.net->parameters()[0];
    const at::Tensor values = weight.detach().clone();
    rank.engine.reset();
    rank.net.reset();
    EXPECT_TRUE(at::equal(weight, values));
    weight.sum().backward();
    EXPECT_TRUE(at::equal(weight.grad(), at::ones_like(weight)));
  });
}

TEST_P(EngineUse, ANoSyncScopeMayOutliveItsEngine) {
  on_ranks([](Rank& rank) {
    auto scope = std::make_optional<Engine::NoSync>(rank.engine->no_sync());
    const std::weak_ptr<Net> model = rank.net;
    rank.engine.reset();
    rank.net.reset();
    scope.reset();
    EXPECT_TRUE(model.expired()) << "the scope kept the engine's model";
  });
}

TEST_P(EngineUseOfWholeParameters, AGraphThatOutlivesTheEngineBelongsToTorch) {
  on_ranks([](Rank& rank) {
    const at::Tensor loss = rank.loss(0);
    rank.engine.reset();
    loss.backward();
    for (const at::Tensor& parameter : rank.net->parameters()) {
      EXPECT_TRUE(parameter.grad().defined());
    }
  });
}

TEST_P(EngineUse, TakesAModelByReferenceAndByHolder) {
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
    torch::nn::LinearImpl on_the_stack(7, 13);
    torch::nn::Linear holder(7, 13);
    const auto by_reference =
        parallelize(on_the_stack, adamw(), small_options_of(configuration()), world);
    const auto by_holder = parallelize(holder, adamw(), small_options_of(configuration()), world);
    for (int step = 0; step < 2; ++step) {
      on_the_stack.forward(at::ones({3, 7})).pow(2).sum().backward();
      EXPECT_TRUE(by_reference->step().committed);
      holder(at::ones({3, 7})).pow(2).sum().backward();
      EXPECT_TRUE(by_holder->step().committed);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, EngineUse, configurations_and_worlds(), name_of);
INSTANTIATE_TEST_SUITE_P(, EngineUseOfWholeParameters,
                         configurations_and_worlds(&Setting::has_whole_parameters), name_of);
INSTANTIATE_TEST_SUITE_P(, EngineUseOfSplitParameters,
                         configurations_and_worlds(&Setting::splits_parameters), name_of);

}  // namespace
}  // namespace tessera::internal::testing
