// Data parallelism by hand: SGD on handwritten digits, each gradient averaged by a collective.
// digits_ddp does the same with an engine; digits trains under any strategy.
//
//   tessera-run --standalone --nproc-per-node 2 build/release/bin/digits_by_hand
//
// Expected last line (its last digits depend on the number of ranks and on the machine):
//
//   world 2: loss 0.0007, accuracy 91.9 % of 297
//
// --data FOLDER trains on MNIST's four files instead. It does not download them.
#include <cstdio>
#include <string>

#include <absl/flags/flag.h>

#include "tessera/examples/program/digits.h"
#include "tessera/examples/program/program.h"
#include "tessera/tessera.h"

ABSL_FLAG(int, epochs, 20, "times to go through the digits");
ABSL_FLAG(std::string, data, "", program::kDigitsHelp);

namespace {

constexpr int64_t kBatch = 60;  // of all ranks together

/// Makes the network for images of `side` x `side` pixels.
torch::nn::Sequential make_net(int64_t side) {
  using torch::nn::Conv2d, torch::nn::Conv2dOptions, torch::nn::Linear, torch::nn::ReLU;
  torch::manual_seed(1);
  const int64_t pixels =
      ((side - 3) / 2 + 1) * ((side - 3) / 2 + 1);  // after the strided convolution
  return torch::nn::Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), ReLU(),
                               Conv2d(Conv2dOptions(16, 16, 3).stride(2)), ReLU(),
                               torch::nn::Flatten(), Linear(16 * pixels, 10));
}

void train() {
  const int epochs = absl::GetFlag(FLAGS_epochs);
  if (epochs < 1) throw program::UsageError("--epochs: expected 1 or more");
  auto world = tessera::init_process_group();
  const auto [train, test] = program::read_digits(absl::GetFlag(FLAGS_data));

  torch::nn::Sequential net = make_net(train.side());
  for (const at::Tensor& parameter : net->parameters()) {
    world->broadcast(parameter.detach(), /*root=*/0, "parameter")->wait();
  }
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));

  auto generator = at::detail::createCPUGenerator(/*seed=*/3);  // the same order on all ranks
  at::Tensor loss;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const at::Tensor order = at::randperm(train.digit.size(0), generator, at::kLong);
    for (const at::Tensor& batch : order.split(kBatch)) {
      const at::Tensor mine = batch.slice(0, world->rank(), std::nullopt, world->size());
      loss = torch::nn::functional::cross_entropy(net->forward(train.pixels.index_select(0, mine)),
                                                  train.digit.index_select(0, mine));
      optimizer.zero_grad();
      loss.backward();
      for (const at::Tensor& parameter : net->parameters()) {
        world->all_reduce(parameter.grad(), tessera::ReduceOp::kAvg, "gradient")->wait();
      }
      optimizer.step();
    }
  }

  at::Tensor mean = loss.detach().clone();
  world->all_reduce(mean, tessera::ReduceOp::kAvg, "loss")->wait();
  const at::NoGradGuard no_grad;
  const at::Tensor right = program::right_answers(net, test);
  if (world->rank() == 0) {
    std::printf("world %d: loss %.4f, accuracy %.1f %% of %lld\n", world->size(),
                mean.item<double>(), 100.0 * right.to(at::kDouble).mean().item<double>(),
                static_cast<long long>(right.numel()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return program::run({.name = "digits_by_hand",
                       .summary = "trains on digits, averaging gradients by hand.",
                       .examples = {"tessera-run --standalone --nproc-per-node 2 digits_by_hand"}},
                      argc, argv, train);
}
