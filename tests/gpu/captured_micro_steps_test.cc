// Micro-steps as CUDA graphs train to the same result as eager ones.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"
#include "tessera/zero/engine/captured_micro_steps.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

struct Training {
  Outcome outcome;
  int bodies = 0;  ///< calls of the body
};

Schedule schedule_of(int micro_steps) {
  Schedule schedule;
  schedule.name = "Graphs";
  schedule.steps = 7;
  schedule.micro_steps = micro_steps;
  schedule.max_grad_norm = 0.5;
  return schedule;
}

/// Trains through micro_step() in a world of one, with inputs at fixed addresses.
Training train_in_place(const Subject& subject, Options options, int micro_steps,
                        const std::function<void(const at::Tensor& loss)>& with_loss = nullptr) {
  Training run;
  run_ranks(1, [&](const std::shared_ptr<ProcessGroup>& given) {
    const std::shared_ptr<ProcessGroup> world = alone()(given);
    const std::shared_ptr<Net> net = prepare(subject.make(), at::kFloat, 7);
    net->to(world->device());
    const Schedule schedule = schedule_of(micro_steps);
    options.max_grad_norm = schedule.max_grad_norm;
    const std::unique_ptr<Engine> engine = parallelize(net, make_plan(*net), options, world);
    const Batch first = batch_of(subject, at::kFloat, schedule, {}, 0);
    const Batch place{first.input.to(world->device()), first.target.to(world->device())};
    at::Tensor loss = at::zeros({}, at::TensorOptions().device(world->device()));
    for (int step = 0; step < schedule.steps; ++step) {
      for (int micro = 0; micro < micro_steps; ++micro) {
        const Batch batch = batch_of(subject, at::kFloat, schedule, {.step = step}, micro);
        place.input.copy_(batch.input);
        place.target.copy_(batch.target);
        engine->micro_step([&] {
          ++run.bodies;
          const at::Tensor made = loss_of(*net, place, {}, schedule);
          made.backward();
          loss.copy_(made.detach());
          if (with_loss) with_loss(made);
        });
        run.outcome.losses.push_back(loss.item<double>());
      }
      engine->step();
      engine->wait();
      run.outcome.grad_norms.push_back(engine->last_result().grad_norm);
    }
    run.outcome.parameters = copy_parameters(*net);
  });
  return run;
}

class CapturedMicroStepsTest
    : public ::testing::TestWithParam<std::tuple<std::string, Strategy, int>> {};

TEST_P(CapturedMicroStepsTest, TrainAsEagerOnes) {
  const auto& [model, strategy, micro_steps] = GetParam();
  Options options;
  options.strategy = strategy;
  const Training eager = train_in_place(subject(model), options, micro_steps);
  EXPECT_EQ(eager.bodies, schedule_of(micro_steps).steps * micro_steps);
  options.cuda_graphs = true;
  const Training captured = train_in_place(subject(model), options, micro_steps);
  EXPECT_EQ(captured.bodies, (CapturedMicroSteps::kWarmUps + 1) * micro_steps);
  EXPECT_EQ(bit_differences(captured.outcome, eager.outcome), "");
}

INSTANTIATE_TEST_SUITE_P(Models, CapturedMicroStepsTest,
                         ::testing::Combine(::testing::Values("DeepMlp", "TiedMlp", "Blocks",
                                                              "UnusedEverywhere"),
                                            ::testing::Values(Strategy::kDdp, Strategy::kZero3),
                                            ::testing::Values(1, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  std::string(to_string(std::get<1>(info.param))) + "_" +
                                  std::to_string(std::get<2>(info.param));
                         });

TEST(CapturedMicroStepsErrors, NameWhatCannotBeCaptured) {
  Options options;
  options.cuda_graphs = true;
  EXPECT_THAT(message_of([&] {
                train_in_place(subject("DeepMlp"), options, 1,
                               [](const at::Tensor& loss) { loss.item<double>(); });
              }),
              HasSubstr("[graph] micro_step: got a body that cannot be captured: "));
}

TEST(CapturedMicroStepsErrors, RefuseOtherWorlds) {
  if (most_rank_threads() < 2) GTEST_SKIP() << "needs 2 GPUs";
  const std::vector<std::string> errors =
      run_ranks_expecting_errors(2, [](const std::shared_ptr<ProcessGroup>& given) {
        const std::shared_ptr<ProcessGroup> world = staged_over_host()(given);
        const std::shared_ptr<Net> net = prepare(subject("DeepMlp").make(), at::kFloat, 7);
        net->to(world->device());
        Options options;
        options.cuda_graphs = true;
        parallelize(net, make_plan(*net), options, world);
      });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("[options] cuda_graphs: is set, but collectives are not "
                                 "captured, and there are 2 ranks"));
  }
}

}  // namespace
}  // namespace tessera::internal::testing
