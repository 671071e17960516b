// Gradients given to Engine::accumulate() on GPUs have the same effect as backward, also with
// asynchronous steps, where ranks must exchange their errors separately.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/gpu/gpu_comparison.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/given_gradients.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

TrainOptions giving() {
  return {.backward = [](Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
    engine.accumulate(gradients_of(engine, loss));
  }};
}

TEST(AccumulateOnGpu, TrainsAsBackwardDoes) {
  const int world = std::min(3, most_rank_threads());
  for (const Configuration& configuration : named_configurations()) {
    for (const std::string name : {"OnceClipped", "ThriceNoSync"}) {
      const Schedule& schedule = schedule_called(name);
      for (const auto over : {&staged_over_host, &over_nccl}) {
        const Outcome expected = train_on_threads(subject("UnusedEverywhere"), at::kFloat,
                                                  configuration, schedule, world, {}, over());
        const Outcome outcome = train_on_threads(subject("UnusedEverywhere"), at::kFloat,
                                                 configuration, schedule, world, giving(), over());
        EXPECT_EQ(gpu_differences(outcome, expected), "") << configuration << " " << name;
      }
    }
  }
}

TEST(AccumulateOnGpu, AMistakeOfOneRankIsThrownOnAllBesideAStepThatIsUnderWay) {
  const int world = std::min(2, most_rank_threads());
  const Configuration configuration = configuration_of(Strategy::kZero2);
  const Schedule& schedule = schedule_called("Once");
  TrainOptions mistaken = giving();
  mistaken.backward = [](Engine& engine, const torch::nn::Module&, const at::Tensor& loss) {
    std::vector<NamedTensor> gradients = gradients_of(engine, loss);
    std::vector<NamedTensor> wrong = gradients;
    if (engine.group().rank() == 0) wrong[0].name = "nothing";
    EXPECT_THAT(message_of([&] { engine.accumulate(wrong); }),
                HasSubstr("[accumulate] rank 0: gradient of 'nothing'"));
    engine.accumulate(gradients);
  };
  for (const auto over : {&staged_over_host, &over_nccl}) {
    SCOPED_TRACE(over == &over_nccl ? "over NCCL" : "staged over the host");
    const Outcome expected =
        train_on_threads(subject("OddMlp"), at::kFloat, configuration, schedule, world, {}, over());
    const Outcome outcome = train_on_threads(subject("OddMlp"), at::kFloat, configuration, schedule,
                                             world, mistaken, over());
    EXPECT_EQ(gpu_differences(outcome, expected), "");
  }
}

}  // namespace
}  // namespace tessera::internal::testing
