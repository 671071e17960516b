// Measures the cost of Options::reproducible: two engines over equal models in one process, one
// with sums in rank order and one with sums in the order of a tree, train the same batches in turn.
// Prints one line of JSON.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/flags/flag.h>
#include <torch/torch.h>

#include "tessera/bench/macro/entry/answer.h"
#include "tessera/bench/macro/train/task.h"
#include "tessera/examples/program/program.h"
#include "tessera/tessera.h"

ABSL_FLAG(std::string, model, "A", "as macro_train takes it");
ABSL_FLAG(std::string, text, "", "file that the GPTs learn from, of more than 4096 bytes");
ABSL_FLAG(tessera::Strategy, strategy, tessera::Strategy::kDdp, "one without degrees");
ABSL_FLAG(int, micro_steps, 1, "backwards per step; a power of two");
ABSL_FLAG(int, rounds, 9, "steps of each engine that are timed");

namespace {

using Clock = std::chrono::steady_clock;

class Order {
 public:
  Order(tessera::Reproducible reproducible, const std::shared_ptr<tessera::ProcessGroup>& world)
      : world_(world),
        task_(bench::make_task(absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_text), world->rank(),
                               world->size())) {
    tessera::Options options{.strategy = absl::GetFlag(FLAGS_strategy),
                             .reproducible = reproducible};
    if (options.strategy == tessera::Strategy::kZero3) options.wrap = task_.wrap;
    engine_ = tessera::parallelize(task_.model, torch::optim::AdamWOptions(3e-4), options, world);
  }

  /// The milliseconds until all ranks have finished a step.
  double train(int64_t step) {
    const int micro_steps = absl::GetFlag(FLAGS_micro_steps);
    world_->barrier("begin");
    const auto begin = Clock::now();
    for (int micro = 0; micro < micro_steps; ++micro) {
      (task_.loss(task_.batch(step * micro_steps + micro)) / micro_steps).backward();
    }
    engine_->step();
    world_->barrier("end");
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  }

  int64_t gradient_bytes() const {
    return engine_->memory().now()[tessera::MemoryClass::kGradients];
  }

 private:
  const std::shared_ptr<tessera::ProcessGroup> world_;
  bench::Task task_;
  std::unique_ptr<tessera::Engine> engine_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run() {
  const auto world = tessera::init_process_group();
  at::set_num_threads(1);
  Order ranks(tessera::Reproducible::kOneWorldSize, world);
  Order tree(tessera::Reproducible::kAnyWorldSize, world);
  std::vector<double> in_ranks, in_tree, ratios;
  constexpr int kUntimed = 2;
  for (int64_t round = 0; round < kUntimed + absl::GetFlag(FLAGS_rounds); ++round) {
    // The engines alternate in going first, so that neither always finds the other's data in cache.
    const bool tree_first = round % 2 == 1;
    double tree_ms = tree_first ? tree.train(round) : 0.0;
    const double ranks_ms = ranks.train(round);
    if (!tree_first) tree_ms = tree.train(round);
    if (round < kUntimed) continue;
    in_ranks.push_back(ranks_ms);
    in_tree.push_back(tree_ms);
    ratios.push_back(tree_ms / ranks_ms);
  }
  if (world->rank() != 0) return;
  bench::Answer("sum_order")
      .add("ranks_ms", median(in_ranks))
      .add("tree_ms", median(in_tree))
      .add("ratio", median(ratios))
      .add("ratios", ratios)
      .add("ranks_gradient_bytes", ranks.gradient_bytes())
      .add("tree_gradient_bytes", tree.gradient_bytes())
      .send();
}

}  // namespace

int main(int argc, char** argv) {
  return program::run(
      {.name = "macro_sum_order",
       .summary = "times steps in a tree's order (Options::reproducible) beside "
                  "steps in rank order, in turn",
       .examples = {"tessera-run --nproc-per-node 2 -- macro_sum_order --micro_steps "
                    "4 --text README.md"}},
      argc, argv, [] { run(); });
}
