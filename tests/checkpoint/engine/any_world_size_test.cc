#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoints.h"
#include "tessera/distributed_sampler.h"
#include "tessera/tests/equivalence/any_world_size.h"
#include "tessera/tests/support/temporary_directory.h"

// A run under Reproducible::kAnyWorldSize that is killed on one number of ranks and resumed on
// another from its checkpoint: parameters have the bits of an uninterrupted run, and data and seeds
// continue where they were.
namespace tessera::internal::testing {
namespace {

constexpr int kStepsUntilKill = 2;
constexpr int kStepsInAll = 4;

AnySizeRun resumable_run() {
  return {.subject = {.name = "Dropping",
                      .make = [] { return std::make_shared<Dropping>(); },
                      .input_shape = {7},
                      .target_shape = {5}}};
}

/// Resumes the run in `directory`, trains to step `last` and saves it. Returns rank 0's parameters.
std::map<std::string, at::Tensor> go_on(const std::string& directory, int size,
                                        const Configuration& configuration, int last) {
  const AnySizeRun run = resumable_run();
  std::map<std::string, at::Tensor> parameters;
  run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
    const std::shared_ptr<Net> net = prepare(run.subject.make(), run.dtype, 42);
    const auto engine = engine_of(run, configuration, net, world);
    // Its samples are numbers of micro-batches.
    data::DistributedSampler sampler(100 * kMicroBatches, *world, {.seed = 5});
    Checkpoints checkpoints(*engine, directory, {.every = 1, .asynchronous = false});
    checkpoints.track("data", sampler);
    checkpoints.load();
    EXPECT_EQ(engine->micro_batch(), engine->steps() * kMicroBatches + world->rank());
    const int micro_steps = kMicroBatches / size;
    while (engine->steps() < last) {
      const std::vector<size_t> numbers = sampler.indices();
      for (int micro = 0; micro < micro_steps; ++micro) {
        const Moment moment{.step = static_cast<int>(engine->micro_batch())};
        const Batch batch = draw_batch(run.subject, run.dtype, 3, numbers[micro]);
        (at::mse_loss(net->forward(batch.input, moment), batch.target) / micro_steps).backward();
      }
      engine->step();
      sampler.advance_samples(micro_steps);
      checkpoints.after_step();
    }
    checkpoints.finish();
    const Engine::Scope whole = engine->full_parameters();
    if (world->rank() == 0) parameters = copy_parameters(*net);
  });
  return parameters;
}

TEST(AnyWorldSizeCheckpoint, GoesOnAtAnyNumberOfRanksWithTheSameBits) {
  const TemporaryDirectory straight;
  const auto expected = go_on(straight.path(), 1, configuration_of(Strategy::kDdp), kStepsInAll);
  for (const auto& [from, to] : {std::pair{8, 2}, {1, 4}, {4, 1}, {2, 8}}) {
    const TemporaryDirectory directory;
    const auto half =
        go_on(directory.path(), from, configuration_of(Strategy::kZero3), kStepsUntilKill);
    EXPECT_NE(bit_differences(half, expected), "") << "the control";
    EXPECT_EQ(
        bit_differences(
            go_on(directory.path(), to, configuration_of(Strategy::kZero2), kStepsInAll), expected),
        "")
        << from << " ranks to " << to;
  }
}

}  // namespace
}  // namespace tessera::internal::testing
