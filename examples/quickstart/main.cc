// Tessera on one page: trains a classifier on all ranks, under the strategy that a flag gives.
//
//   tessera-run --standalone --nproc-per-node 2 build/release/bin/quickstart --strategy zero3
//
// Expected last line, the same for every strategy. It depends on the number of ranks; the last
// digits of the loss and the hash of the parameters also depend on the machine's arithmetic.
//
//   world 2: loss 0.046682721, accuracy 99.6 %, parameters cf9797b92ec5c0b9
#include <cmath>
#include <cstdio>
#include <memory>

#include <absl/flags/flag.h>

#include "tessera/examples/program/program.h"
#include "tessera/examples/program/time_out_flag.h"
#include "tessera/tessera.h"

ABSL_FLAG(tessera::Strategy, strategy, tessera::Strategy::kDdp, "ddp, zero1, zero2 or zero3");
ABSL_FLAG(int, epochs, 30, "times to go through the data");
ABSL_FLAG(program::TimeOutFlag, timeout, {}, program::kTimeOutHelp);

namespace {

/// Points of the plane on three arms of a spiral; the arm is the class.
class Spiral : public torch::data::Dataset<Spiral> {
 public:
  Spiral() {
    auto generator = at::detail::createCPUGenerator(/*seed=*/7);
    const at::Tensor along = at::rand({kPoints}, generator, at::kFloat);
    arm_ = at::arange(kPoints, at::kLong).remainder(3);
    const at::Tensor angle =
        along * 4.0 + arm_ * (2.0 * M_PI / 3.0) + at::randn({kPoints}, generator, at::kFloat) * 0.1;
    point_ = at::stack({along * at::cos(angle), along * at::sin(angle)}, 1);
  }
  torch::data::Example<> get(size_t i) override {
    return {point_[static_cast<int64_t>(i)], arm_[static_cast<int64_t>(i)]};
  }
  std::optional<size_t> size() const override { return static_cast<size_t>(kPoints); }

 private:
  static constexpr int64_t kPoints = 1536;
  at::Tensor point_, arm_;
};

struct Net : torch::nn::Module {
  Net()
      : layers(register_module("layers",
                               torch::nn::Sequential(torch::nn::Linear(2, 64), torch::nn::ReLU(),
                                                     torch::nn::Linear(64, 61), torch::nn::ReLU(),
                                                     torch::nn::Linear(61, 3)))) {}
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};

void train() {
  const int epochs = absl::GetFlag(FLAGS_epochs);
  if (epochs < 1) throw program::UsageError("--epochs: expected 1 or more");
  tessera::ProcessGroupOptions options;
  options.timeout = absl::GetFlag(FLAGS_timeout).timeout;
  // Reads RANK, WORLD_SIZE, ... If they are not set, this is a world of one rank.
  auto world = tessera::init_process_group(options);
  torch::manual_seed(1);
  auto model = std::make_shared<Net>();  // any torch::nn::Module, unchanged
  auto engine = tessera::parallelize(
      model, torch::optim::AdamWOptions(3e-3).weight_decay(0.01),
      {.strategy = absl::GetFlag(FLAGS_strategy), .max_grad_norm = 1.0}, world);
  torch::optim::StepLR schedule(engine->optimizer(), /*step_size=*/200, /*gamma=*/0.5);

  auto dataset = Spiral().map(torch::data::transforms::Stack<>());
  const size_t batch = 96 / static_cast<size_t>(world->size());
  tessera::data::DistributedSampler sampler(*dataset.size(), *world);
  auto loader = torch::data::make_data_loader(dataset, sampler, batch);
  at::Tensor score = at::zeros({2}, at::kDouble);  // loss and accuracy of the last epoch
  for (int epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    score.zero_();
    double batches = 0;
    for (auto& example : *loader) {
      const at::Tensor logits = model->forward(example.data);
      const at::Tensor loss = torch::nn::functional::cross_entropy(logits, example.target);
      loss.backward();
      engine->step();  // the ranks agree, clip, update, all-gather and clear the gradients
      schedule.step();
      score[0] += loss.detach();
      score[1] += logits.argmax(1).eq(example.target).to(at::kDouble).mean();
      ++batches;
    }
    score /= batches;
  }
  world->all_reduce(score, tessera::ReduceOp::kAvg, "score")->wait();
  const uint64_t hash = tessera::parameter_hash(*engine);
  if (world->rank() == 0) {
    std::printf("world %d: loss %.9f, accuracy %.1f %%, parameters %016lx\n", world->size(),
                score[0].item<double>(), 100.0 * score[1].item<double>(), hash);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return program::run({.name = "quickstart",
                       .summary = "trains a small classifier on all ranks.",
                       .examples = {"quickstart",
                                    "tessera-run --standalone --nproc-per-node 2 "
                                    "quickstart --strategy zero3"}},
                      argc, argv, train);
}
