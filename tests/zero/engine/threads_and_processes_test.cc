#include <memory>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tessera/tessera.h"
#include "tessera/tests/support/rank_processes.h"

namespace tessera::internal::testing {
namespace {

/// Odd sizes, so that each of three ranks owns a part of everything.
std::shared_ptr<torch::nn::SequentialImpl> small_model() {
  torch::manual_seed(3);
  using torch::nn::Linear, torch::nn::Tanh;
  return torch::nn::Sequential(Linear(7, 31), Tanh(), Linear(31, 13), Tanh(), Linear(13, 5)).ptr();
}

/// The parameters' hash after some steps, each rank with its own rows.
std::string trained(const std::shared_ptr<torch::nn::SequentialImpl>& model, Strategy strategy,
                    const std::shared_ptr<ProcessGroup>& world) {
  auto engine = parallelize(model, torch::optim::AdamWOptions(1e-2), {.strategy = strategy}, world);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor rows =
        torch::arange(42).add(step + 3 * world->rank()).to(at::kFloat).sin().view({6, 7});
    model->forward(rows).pow(2).mean().backward();
    engine->step();
  }
  return absl::StrCat(absl::Hex(parameter_hash(*engine), absl::kZeroPad16));
}

const std::vector<Strategy> kTried = {Strategy::kDdp, Strategy::kZero2, Strategy::kZero3};

const RankProcessBody kTrains("threads_and_processes", [] {
  const auto world = join();
  for (const Strategy strategy : kTried) {
    const std::string hash = trained(small_model(), strategy, world);
    if (world->rank() == 0) say(hash);
  }
});

/// The hash on rank 0 of `n` threads.
std::string trained_on_threads(int n, Strategy strategy) {
  const auto prototype = small_model();
  std::string hash;
  run_threads(n, [&](std::shared_ptr<ProcessGroup> world) {
    const auto own = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(prototype->clone());
    const std::string of_rank = trained(own, strategy, world);
    if (world->rank() == 0) hash = of_rank;
  });
  return hash;
}

TEST(RunThreads, TrainsToTheBitsOfProcesses) {
  std::string hashes;
  for (const Strategy strategy : kTried) {
    absl::StrAppend(&hashes, trained_on_threads(3, strategy), "\n");
  }
  EXPECT_EQ(run_rank_processes(3, "threads_and_processes")[0].output, hashes);
  EXPECT_NE(trained_on_threads(2, Strategy::kDdp) + "\n", hashes.substr(0, 17)) << "the control";
}

}  // namespace
}  // namespace tessera::internal::testing
