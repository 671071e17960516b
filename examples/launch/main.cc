// A program that starts its own ranks, as Python's torch.multiprocessing.spawn() does. It needs no
// launcher.
//
//   build/release/bin/launch --ranks 3
//
// Expected output (its last digits depend on the number of ranks and on the machine):
//
//   world 3: loss 0.1514, accuracy 87.2 % of 297
#include <cstdio>
#include <optional>

#include <absl/flags/flag.h>

#include "tessera/examples/program/command_line.h"
#include "tessera/examples/program/digits.h"
#include "tessera/tessera.h"

ABSL_FLAG(int, ranks, 2, "processes to train on");

namespace {

/// What each rank does.
int train() {
  auto world = tessera::init_process_group();
  const auto [train, test] = program::read_digits("");
  torch::manual_seed(1);
  using torch::nn::Linear, torch::nn::ReLU;
  torch::nn::Sequential net(torch::nn::Flatten(), Linear(64, 128), ReLU(), Linear(128, 10));
  auto engine = tessera::parallelize(net, torch::optim::SGDOptions(0.1).momentum(0.9),
                                     {.strategy = tessera::Strategy::kZero2}, world);
  tessera::Mean mean;
  for (int step = 0; step < 300; ++step) {
    const int64_t first = step % 25 * 60;  // first row of all ranks' batch
    const torch::indexing::Slice mine(first + world->rank(), first + 60, world->size());
    at::Tensor loss = torch::nn::functional::cross_entropy(net->forward(train.pixels.index({mine})),
                                                           train.digit.index({mine}));
    loss.backward();
    engine->step();
    if (step >= 275) mean.add(loss);
  }
  const double loss = mean.over_ranks(*world).value();
  const at::NoGradGuard no_grad;
  const double right = program::right_answers(net, test).to(at::kDouble).mean().item<double>();
  if (world->rank() == 0) {
    std::printf("world %d: loss %.4f, accuracy %.1f %% of 297\n", world->size(), loss, 100 * right);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<int> end = program::read_command_line(
      {"launch", "trains on digits, on ranks that it starts itself.", {"launch --ranks 2"}}, argc,
      argv);
  if (end) return *end;
  return tessera::record_errors(
      [&] { return tessera::launch(argc, argv, {.nproc = absl::GetFlag(FLAGS_ranks)}, train); });
}
