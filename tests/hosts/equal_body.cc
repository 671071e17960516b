// The body of ranks on two hosts (started by jobs.sh): they train to equal results under every row
// of the table, and evaluate alone.
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/hosts/needs_windows.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

/// Compares every row of the table with ddp over the same hosts, to the bit: the layout decides the
/// order of sums over hosts, equally for all rows. If all ranks communicate through MPI, the order
/// is that of shared memory, so ddp is then trained over shared memory.
void train_equally() {
  const auto world = join();
  const bool is_flat = world->backend() == "mpi";
  const auto reference = is_flat ? init_process_group({.backend = "shm"}) : world;
  at::set_num_threads(1);
  int equal = 0;
  int left_out = 0;
  size_t turn = 0;
  for (const std::string model : {"UnusedEverywhere", "FrozenBlocks", "MixedDtypes", "TiedBlocks",
                                  "Branches", "BranchingBlocks"}) {
    const Schedule& schedule = schedules()[turn++ % schedules().size()];
    const Outcome expected =
        train(subject(model), at::kFloat, configuration_of(Strategy::kDdp), schedule, reference);
    for (const Configuration& configuration : configurations_of_world(world->size())) {
      if (!configuration.keeps_bits()) continue;
      if (configuration.strategy == Strategy::kDdp && !is_flat) continue;
      if (needs_windows(configuration, model, world->size()) && !world->can().one_sided_reads) {
        ++left_out;
        continue;
      }
      const Outcome got = train(subject(model), at::kFloat, configuration, schedule, world);
      const std::string difference = bit_differences(got, expected);
      EXPECT_EQ(difference, "") << configuration << " " << model << " " << schedule;
      equal += difference.empty() ? 1 : 0;
    }
    // The comparison can fail.
    Schedule other = schedule;
    other.max_grad_norm = 0.01;
    EXPECT_NE(bit_differences(train(subject(model), at::kFloat, configuration_of(Strategy::kZero1),
                                    other, world),
                              expected),
              "");
  }
  if (world->rank() == 0) {
    say("over " + std::string(world->backend()) + ", " + std::to_string(world->size()) +
        " ranks: " + std::to_string(equal) + " runs equal ddp's over " +
        std::string(reference->backend()) + "; " + std::to_string(left_out) +
        " need one-sided reads and were left out");
  }
}
const RankProcessBody kTrainEqually("hosts_equal", train_equally);

/// After two steps the last rank evaluates while the others compute nothing; then all continue.
void evaluate_alone() {
  const auto world = join();
  at::set_num_threads(1);
  if (!world->can().one_sided_reads) {
    if (world->rank() == 0) say("left out: there are no one-sided reads");
    return;
  }
  struct Result {
    double loss = 0.0;
    uint64_t hash = 0;
  };
  const auto run = [&](const Configuration& configuration) {
    torch::manual_seed(7);
    const Trainer trainer(world, configuration);
    for (int step = 0; step < 2; ++step) trainer.train(step);
    Result result;
    if (world->rank() == world->size() - 1) {
      const torch::NoGradGuard no_grad;
      for (int batch = 10; batch < 14; ++batch) result.loss += trainer.loss(batch).item<double>();
    }
    world->barrier("it is back");
    for (int step = 2; step < 4; ++step) trainer.train(step);
    result.hash = parameter_hash(*trainer.engine);
    return result;
  };
  const Result expected = run(configuration_of(Strategy::kDdp));
  for (const Configuration& configuration :
       {configuration_of(Strategy::kZero3), apart(configuration_of(Strategy::kZero3)),
        resharding(1)}) {
    const Result got = run(configuration);
    EXPECT_EQ(got.loss, expected.loss) << configuration;
    EXPECT_EQ(got.hash, expected.hash) << configuration;
  }
  EXPECT_EQ(expected.loss > 0.0, world->rank() == world->size() - 1);
  if (world->rank() == 0) say("one rank has evaluated alone");
}
const RankProcessBody kEvaluateAlone("hosts_alone", evaluate_alone);

}  // namespace
}  // namespace tessera::internal::testing
