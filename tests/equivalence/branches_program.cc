// For ranks started by mpirun: every rank takes its own branches, and after each step one rank
// evaluates alone. Over MPI the result must have the same bits as over shared memory, under every
// configuration that splits parameters.
//
//   mpirun -n 3 branches_program
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/block_models.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

/// A rank's losses and its parameters at the end.
struct Run {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
};

Run train_with_branches(const Configuration& configuration,
                        const std::shared_ptr<ProcessGroup>& world) {
  const Subject& model = subject("BranchingBlocks");
  const Schedule& schedule = schedules().front();
  const int rank = world->rank();
  const auto net = prepare(model.make(), at::kFloat, kModelSeed + static_cast<uint64_t>(rank));
  const auto engine = parallelize(net, make_plan(*net), options_of(configuration, schedule), world);
  Run run;
  for (int step = 0; step < 4; ++step) {
    const Moment moment{.step = step, .rank = rank};
    const Batch batch = batch_of(model, at::kFloat, schedule, moment, 0);
    const at::Tensor loss = loss_of(*net, batch, moment, schedule);
    engine->scale(loss).backward();
    run.losses.push_back(loss.item<double>());
    engine->step();
    if (rank != step % world->size()) continue;
    const at::NoGradGuard no_grad;
    for (int other = 0; other < 3; ++other) {
      run.losses.push_back(
          loss_of(*net, batch, {.step = step, .rank = other}, schedule).item<double>());
    }
  }
  const auto whole = engine->full_parameters();
  run.parameters = copy_parameters(*net);
  return run;
}

int run_all() {
  const auto shm = init_process_group({.backend = "shm"});
  const auto mpi = init_process_group({.backend = "mpi"});
  if (!mpi->can().one_sided_reads) throw std::runtime_error("there are no windows over MPI");
  int compared = 0;
  for (const Configuration& configuration : configurations_of_world(mpi->size())) {
    if (!configuration.splits_parameters()) continue;
    const Run expected = train_with_branches(configuration, shm);
    const Run got = train_with_branches(configuration, mpi);
    const std::string difference = bit_differences(got.losses, expected.losses) +
                                   bit_differences(got.parameters, expected.parameters);
    if (!difference.empty()) {
      std::printf("rank %d, %s: %s\n", mpi->rank(), configuration.name.c_str(), difference.c_str());
      return 1;
    }
    ++compared;
  }
  std::printf("rank %d of %d: %d configurations agree\n", mpi->rank(), mpi->size(), compared);
  return compared > 0 ? 0 : 1;
}

}  // namespace
}  // namespace tessera::internal::testing

int main() {
  try {
    return tessera::internal::testing::run_all();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
