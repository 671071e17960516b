#include "tessera/sync_batch_norm.h"

#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/activation_checkpoint.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"

// When SyncBatchNorm communicates, and what it refuses. Its values:
// sync_batch_norm_equality_test.cc.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kWidth = 5;

TEST(SyncBatchNorm, SendsTwoCallsPerLayerInTrainingAndNoneInEval) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto recording = std::make_shared<Recording>();
    const auto group = std::make_shared<RecordingGroup>(world, recording);
    tessera::nn::SyncBatchNorm1d norm(kWidth, group);
    const at::Tensor input = at::randn({4, kWidth}).set_requires_grad(true);
    norm->forward(input).sum().backward();
    constexpr int64_t kWords = 2 * kWidth + 1;
    EXPECT_THAT(recording->lines(), ElementsAre("all_gather statistics of SyncBatchNorm1d " +
                                                    std::to_string(3 * kWords * 8),
                                                "all_reduce gradient sums of SyncBatchNorm1d " +
                                                    std::to_string(2 * kWidth * 8)));
    recording->clear();
    norm->forward(input.detach()).sum().backward();
    EXPECT_EQ(recording->count("all_reduce"), 0) << "nobody needs the input's gradient";
    recording->clear();
    norm->eval();
    norm->forward(input).sum().backward();
    if (world->rank() == 1) norm->forward(input);  // on one rank only
    EXPECT_THAT(recording->calls(), IsEmpty());
  });
}

TEST(SyncBatchNorm, UpdatesStatisticsWithoutGradMode) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    tessera::nn::SyncBatchNorm1d norm(1, world);
    const at::NoGradGuard no_grad;
    const at::Tensor output = norm->forward(at::full({2, 1}, world->rank() == 0 ? 1.0F : 3.0F));
    EXPECT_FALSE(output.requires_grad());
    EXPECT_FLOAT_EQ(norm->running_mean.item<float>(), 0.1F * 2.0F);
    EXPECT_FLOAT_EQ(norm->running_var.item<float>(), 0.9F + 0.1F * 4.0F / 3.0F) << "unbiased";
  });
}

TEST(SyncBatchNorm, IsRecomputedByActivationCheckpointing) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto rows = static_cast<int64_t>(world->rank());  // none on rank 0
    const auto gradients = [&](bool checkpoints) {
      tessera::nn::SyncBatchNorm1d norm(kWidth, world);
      norm->to(at::kDouble);
      auto generator = at::detail::createCPUGenerator(5);
      const at::Tensor input =
          at::randn({rows, kWidth}, generator, at::kDouble).set_requires_grad(true);
      const at::Tensor output = checkpoints ? checkpoint(norm, input) : norm->forward(input);
      (output * output * output).sum().backward();
      return std::vector<at::Tensor>{input.grad(), norm->weight.grad(), norm->bias.grad()};
    };
    const auto expected = gradients(false);
    const auto got = gradients(true);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
  });
}

TEST(SyncBatchNorm, RefusesSecondDerivatives) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    tessera::nn::SyncBatchNorm1d norm(kWidth, world);
    const at::Tensor input = at::randn({4, kWidth}).set_requires_grad(true);
    const at::Tensor output = norm->forward(input).pow(2).sum();
    const auto gradients = torch::autograd::grad({output}, {input}, {}, std::nullopt,
                                                 /*create_graph=*/true);
    EXPECT_THAT(message_of([&] { gradients[0].pow(2).sum().backward(); }),
                AllOf(HasSubstr("[SyncBatchNorm1d] backward: got a second derivative"),
                      HasSubstr("GroupNorm")));
  });
}

TEST(SyncBatchNorm, RefusesTooFewValuesOnAllRanks) {
  const auto errors = run_ranks_expecting_errors(3, [](const std::shared_ptr<ProcessGroup>& world) {
    tessera::nn::SyncBatchNorm1d norm(kWidth, world);
    const at::Tensor one = at::randn({world->rank() == 1 ? 1 : 0, kWidth});
    EXPECT_THAT(message_of([&] { norm->forward(one); }),
                HasSubstr("[SyncBatchNorm1d] input: got 1 value(s) per channel in the batches of "
                          "all 3 ranks together, expected more than 1"));
    norm->forward(at::randn({1, kWidth}));  // the group still works
  });
  EXPECT_THAT(errors, Each(std::string()));
}

TEST(SyncBatchNorm, RefusesOtherInputsAndNoGroup) {
  EXPECT_THAT(message_of([] { tessera::nn::SyncBatchNorm3d(4, nullptr); }),
              HasSubstr("[SyncBatchNorm3d] group: got null"));
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    tessera::nn::SyncBatchNorm2d norm(kWidth, world);
    EXPECT_THAT(message_of([&] {
                  norm->forward(at::zeros({3, kWidth}));
                }),
                HasSubstr("[SyncBatchNorm2d] input: got 2 dimensions, expected 4"));
    EXPECT_THAT(message_of([&] {
                  norm->forward(at::zeros({3, 2, 1, 1}));
                }),
                HasSubstr("got 2 channels, expected the 5"));
    tessera::nn::SyncBatchNorm1d rows(kWidth, world);
    EXPECT_THAT(message_of([&] {
                  rows->forward(at::zeros({3, kWidth, 1, 1}));
                }),
                HasSubstr("[SyncBatchNorm1d] input: got 4 dimensions, expected 2 or 3"));
  });
}

TEST(SyncBatchNorm, OtherChannelsOnARankAreNamedOnAll) {
  const auto errors = run_ranks_expecting_errors(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const int64_t channels = world->rank() == 2 ? 3 : 4;
    tessera::nn::SyncBatchNorm1d norm(channels, world);
    norm->forward(at::randn({4, channels}));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("float64[9] 'statistics of SyncBatchNorm1d'"),
                                 HasSubstr("float64[7] 'statistics of SyncBatchNorm1d'"))));
}

TEST(SyncBatchNorm, ARankThatDoesNotComeIsATimeOutAndOneElsewhereIsNamedAtOnce) {
  std::latch is_over(1);
  const auto late = run_ranks_expecting_errors(
      2,
      [&](const std::shared_ptr<ProcessGroup>& world) {
        tessera::nn::SyncBatchNorm1d norm(kWidth, world);
        if (world->rank() == 1) return is_over.wait();  // alive, busy elsewhere
        EXPECT_THAT(message_of([&] {
                      norm->forward(at::randn({4, kWidth}));
                    }),
                    AllOf(HasSubstr("statistics of SyncBatchNorm1d"), HasSubstr("rank 1")));
        is_over.count_down();
      },
      {.timeout = std::chrono::milliseconds(1500)});  // the ranks meet within it
  EXPECT_THAT(late, Each(std::string()));
  const auto elsewhere =
      run_ranks_expecting_errors(2, [](const std::shared_ptr<ProcessGroup>& world) {
        tessera::nn::SyncBatchNorm1d norm(kWidth, world);
        if (world->rank() == 1) return world->barrier("elsewhere");
        norm->forward(at::randn({4, kWidth}));
      });
  EXPECT_THAT(elsewhere,
              Each(AllOf(HasSubstr("statistics of SyncBatchNorm1d"), HasSubstr("elsewhere"))));
}

TEST(SyncBatchNorm, PrintsAndClones) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& world) {
    tessera::nn::SyncBatchNorm2d norm(torch::nn::BatchNormOptions(4).momentum(std::nullopt), world);
    std::ostringstream text;
    text << norm;
    EXPECT_EQ(text.str(),
              "tessera::nn::SyncBatchNorm2d(4, eps=1e-05, momentum=None, affine=true, "
              "track_running_stats=true, ranks=2)");
    const auto copy = std::dynamic_pointer_cast<tessera::nn::SyncBatchNorm2dImpl>(norm->clone());
    EXPECT_EQ(copy->group(), world);
    EXPECT_FALSE(copy->weight.is_same(norm->weight));
  });
}

}  // namespace
}  // namespace tessera::internal::testing
