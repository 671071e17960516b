// Trains on handwritten digits that are divided unevenly on purpose: with three ranks, the first
// has 6/11 of the digits, the second 3/11 and the third 2/11. Every digit has the same weight in
// every step. No digit is dropped, none is repeated as padding, and a rank without batches left
// takes part in the others' steps.
//
//   tessera-run --standalone --nproc-per-node 2 build/release/bin/digits_uneven --strategy zero3
//
// Expected last line, the same for every strategy (its digits depend on the number of ranks and on
// the machine's arithmetic):
//
//   world 2: loss 0.3871 over 297, accuracy 91.6 %, parameters 17bd768dbd964ca2
#include <cstdio>
#include <string>
#include <vector>

#include <absl/flags/flag.h>

#include "tessera/examples/program/digits.h"
#include "tessera/examples/program/program.h"
#include "tessera/tessera.h"

ABSL_FLAG(tessera::Strategy, strategy, tessera::Strategy::kDdp, "ddp, zero1, zero2 or zero3");
ABSL_FLAG(int, epochs, 20, "times to go through the digits");
ABSL_FLAG(std::string, data, "", program::kDigitsHelp);

namespace {

constexpr int64_t kBatch = 30;  // rows per rank; a rank's last batch may have fewer

/// Returns the numbers of this rank's rows. Rank r has 1 / (r + 1) times as many as rank 0.
at::Tensor rows_of(const tessera::ProcessGroup& world, int64_t count) {
  const auto weight = [](int rank) { return 1.0 / (rank + 1); };
  double all = 0.0;
  double before = 0.0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank()) before = all;
    all += weight(rank);
  }
  const auto row = [&](double sum) {
    return static_cast<int64_t>(static_cast<double>(count) * sum / all + 0.5);
  };
  return at::arange(row(before), row(before + weight(world.rank())), at::kLong);
}

void train() {
  const int epochs = absl::GetFlag(FLAGS_epochs);
  if (epochs < 1) throw program::UsageError("--epochs: expected 1 or more");
  auto world = tessera::init_process_group();
  const program::DigitSets digits = program::read_digits(absl::GetFlag(FLAGS_data));

  torch::manual_seed(1);
  const int64_t pixels = digits.train.side() * digits.train.side();
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(pixels, 64), torch::nn::ReLU(),
                            torch::nn::Linear(64, 10));
  auto engine = tessera::parallelize(net, torch::optim::SGDOptions(0.1).momentum(0.9),
                                     {.strategy = absl::GetFlag(FLAGS_strategy)}, world);
  const auto loss_of = [&](const program::Digits& of, const at::Tensor& rows) {
    return torch::nn::functional::cross_entropy(net->forward(of.pixels.index_select(0, rows)),
                                                of.digit.index_select(0, rows));
  };

  const at::Tensor mine = rows_of(*world, digits.train.digit.size(0));
  for (int epoch = 0; epoch < epochs; ++epoch) {
    std::vector<at::Tensor> batches =
        mine.index_select(0, at::randperm(mine.numel())).split(kBatch);
    for (const at::Tensor& rows : engine->join(batches)) {
      // The loss is the mean over this batch. Weighting it by the batch's size gives each digit the
      // same weight.
      engine->backward(loss_of(digits.train, rows), {.weight = static_cast<double>(rows.numel())});
      engine->step();
    }
  }

  std::vector<at::Tensor> batches = rows_of(*world, digits.test.digit.size(0)).split(kBatch);
  tessera::Mean right;
  const tessera::Mean loss =
      engine->evaluate(batches, [&](const at::Tensor& rows, tessera::Mean& mean) {
        const auto size = static_cast<double>(rows.numel());
        mean.add(loss_of(digits.test, rows), size);
        const at::Tensor guess = net->forward(digits.test.pixels.index_select(0, rows)).argmax(1);
        right.add(guess.eq(digits.test.digit.index_select(0, rows)).to(at::kDouble).mean(), size);
      });
  right = right.over_ranks(*world);
  const uint64_t hash = tessera::parameter_hash(*engine);
  if (world->rank() == 0) {
    std::printf("world %d: loss %.4f over %.0f, accuracy %.1f %%, parameters %016lx\n",
                world->size(), loss.value(), loss.weight(), 100.0 * right.value(), hash);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return program::run({.name = "digits_uneven",
                       .summary = "trains on digits that ranks have unevenly many of.",
                       .examples = {"tessera-run --standalone --nproc-per-node 2 "
                                    "digits_uneven --strategy zero3"}},
                      argc, argv, train);
}
