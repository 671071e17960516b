// Trains on digits, on ranks that are threads of one process, as the replicas of LibTorch's
// data_parallel() are. Unlike a replica, each rank makes an engine and takes its part of the batch
// before forward.
//
//   build/release/bin/digits_threads --ranks 2
//
// Expected output (its last digits depend on the number of ranks and on the machine):
//
//   world 2: loss 0.0522, accuracy 90.2 % of 297
//
// For GPUs pass {.device = at::kCUDA} to run_threads(), and move models and batches to
// world->device().
#include <cstdio>
#include <memory>

#include <absl/flags/flag.h>

#include "tessera/examples/program/digits.h"
#include "tessera/examples/program/program.h"
#include "tessera/tessera.h"

ABSL_FLAG(int, ranks, 2, "threads to train on");

using torch::nn::Conv2d, torch::nn::Flatten, torch::nn::Linear, torch::nn::ReLU;

static void train() {
  const program::DigitSets digits = program::read_digits("");
  torch::manual_seed(1);
  torch::nn::Sequential net(Conv2d(1, 16, 3), ReLU(), Conv2d(16, 16, 3), ReLU(), Flatten(),
                            Linear(16 * 4 * 4, 10));
  const auto replica = [&](std::shared_ptr<tessera::ProcessGroup> world) {
    torch::nn::Sequential own(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone()));
    auto engine = tessera::parallelize(own, torch::optim::SGDOptions(0.1).momentum(0.9), {}, world);
    tessera::Mean mean;
    for (int step = 0; step < 250; ++step) {
      const int64_t first = step % 25 * 60;  // first row of all ranks' batch
      const torch::indexing::Slice mine(first + world->rank(), first + 60, world->size());
      at::Tensor loss = torch::nn::functional::cross_entropy(
          own->forward(digits.train.pixels.index({mine})), digits.train.digit.index({mine}));
      loss.backward();
      engine->step();
      if (step >= 225) mean.add(loss);
    }
    mean = mean.over_ranks(*world);
    const at::NoGradGuard no_grad;
    const double right =
        program::right_answers(own, digits.test).to(at::kDouble).mean().item<double>();
    if (world->rank() != 0) return;
    std::printf("world %d: loss %.4f, accuracy %.1f %% of 297\n", world->size(), mean.value(),
                100 * right);
  };
  tessera::run_threads(absl::GetFlag(FLAGS_ranks), replica);
}

int main(int argc, char** argv) {
  return program::run({.name = "digits_threads",
                       .summary = "trains on digits, on ranks that are threads.",
                       .examples = {"digits_threads --ranks 2"}},
                      argc, argv, train);
}
