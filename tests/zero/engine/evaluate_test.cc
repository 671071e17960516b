#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/mean.h"
#include "tessera/tests/support/group_without_windows.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Engine::evaluate(): ranks with different numbers of batches, under every strategy.

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

using Evaluate = EngineTest;

/// Rank r has r batches; rank 0 has one.
std::vector<int> batches_to_evaluate(int rank) {
  std::vector<int> batches;
  for (int i = 0; i < (rank == 0 ? 1 : rank); ++i) batches.push_back(10 * rank + i);
  return batches;
}

double loss_of_batch(Net& net, int batch) {
  const torch::NoGradGuard no_grad;
  return loss_on(net, 0, batch).item<double>();
}
double weight_of_batch(int batch) { return 1 + batch % 3; }

TEST_P(Evaluate, IsTheMeanOverAllBatchesOfAllRanks) {
  on_ranks([this](Rank& rank) {
    rank.train(0);
    std::vector<int> batches = batches_to_evaluate(rank.world->rank());
    rank.net->train();
    bool was_training = false;
    const Mean got = rank.engine->evaluate(batches, [&](int batch, Mean& mean) {
      was_training = was_training || rank.net->is_training() || torch::GradMode::is_enabled();
      mean.add(loss_of_batch(*rank.net, batch), weight_of_batch(batch));
    });
    EXPECT_FALSE(was_training);
    EXPECT_TRUE(rank.net->is_training());
    Mean expected;
    for (int other = 0; other < size(); ++other) {
      for (const int batch : batches_to_evaluate(other)) {
        expected.add(loss_of_batch(*rank.net, batch), weight_of_batch(batch));
      }
    }
    EXPECT_EQ(got.value(), expected.value());
    EXPECT_EQ(got.weight(), expected.weight());
    rank.train(1);
  });
}

TEST_P(Evaluate, AnErrorOnOneRankIsNamedOnAll) {
  on_ranks([this](Rank& rank) {
    const bool is_last = rank.world->rank() == size() - 1;
    std::vector<int> batches = {0};
    const std::string message = message_of([&] {
      (void)rank.engine->evaluate(batches, [&](int, Mean&) {
        if (is_last) throw std::runtime_error("no such file");
      });
    });
    EXPECT_THAT(message, is_last ? HasSubstr("no such file")
                                 : HasSubstr("[evaluate] rank " + std::to_string(size() - 1) +
                                             ": no such file"));
    rank.train(0);
  });
}

TEST_P(Evaluate, ItsFunctionTrainsNothing) {
  on_ranks([this](Rank& rank) {
    std::vector<int> batches = {0};
    const auto inside = [&](const std::function<void()>& call) {
      return message_of([&] { (void)rank.engine->evaluate(batches, [&](int, Mean&) { call(); }); });
    };
    EXPECT_THAT(inside([&] { rank.engine->step(); }), HasSubstr("step: called inside evaluate"));
    EXPECT_THAT(inside([&] { (void)rank.engine->evaluate(batches, [](int, Mean&) {}); }),
                HasSubstr("evaluate: called inside evaluate"));
    EXPECT_THAT(inside([&] {
                  const at::AutoGradMode with_grad(true);
                  loss_on(*rank.net, 0, 0).backward();
                }),
                HasSubstr("backward: called inside evaluate"));
    rank.train(0);
  });
}

TEST_P(Evaluate, SoIsWhatIsNoException) {
  on_ranks([this](Rank& rank) {
    const bool is_last = rank.world->rank() == size() - 1;
    std::vector<int> batches = {0};
    int thrown = 0;
    std::string message;
    try {
      (void)rank.engine->evaluate(batches, [&](int, Mean&) {
        if (is_last) throw 42;
      });
    } catch (const int& number) {
      thrown = number;
    } catch (const std::exception& error) {
      message = error.what();
    }
    EXPECT_EQ(thrown, is_last ? 42 : 0);
    if (!is_last) {
      EXPECT_THAT(message, HasSubstr("[evaluate] rank " + std::to_string(size() - 1) +
                                     ": an exception of unknown type"));
    }
    rank.train(0);
  });
}

/// Where gathers are collective, a rank cannot evaluate alone unless the parameters are whole.
TEST(EvaluateOverCollectiveGathers, NeedsEquallyManyBatchesOrWholeParameters) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    const OddRank rank(std::make_shared<GroupWithoutWindows>(std::move(world)),
                       small_options_of(configuration_of(Strategy::kZero3)));
    const auto evaluate = [&](std::vector<int> batches) {
      return rank.engine->evaluate(batches, [&](int batch, Mean& mean) {
        mean.add(loss_of_batch(*rank.net, batch), weight_of_batch(batch));
      });
    };
    const std::vector<int> uneven = batches_to_evaluate(rank.world->rank());
    EXPECT_THAT(message_of([&] { (void)evaluate(uneven); }),
                HasSubstr("[evaluate] rank 0 has no batches left and rank 2 has"));
    const Mean even = evaluate({rank.world->rank(), 3 + rank.world->rank()});
    EXPECT_TRUE(std::isfinite(even.value()));
    const auto whole = rank.engine->full_parameters();
    EXPECT_TRUE(std::isfinite(evaluate(uneven).value()));
  });
}

INSTANTIATE_TEST_SUITE_P(Engines, Evaluate, configurations_and_worlds(), name_of);

}  // namespace
}  // namespace tessera::internal::testing
