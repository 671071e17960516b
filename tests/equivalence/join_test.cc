#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

// Ranks with different numbers of batches, in a loop over Engine::join(), train like one process
// that has the batches of all ranks.

namespace tessera::internal::testing {
namespace {

/// The number of batches of each of up to four ranks.
using BatchCounts = std::array<int, 4>;
constexpr BatchCounts kBatchCounts[] = {{3, 7, 0, 5}, {0, 1, 4, 2}, {2, 2, 2, 2}};

struct JoinRun {
  BatchCounts counts = kBatchCounts[0];
  int micro_steps = 1;
  bool is_weighted = true;
  bool adds_locally = false;   ///< no_sync() for all but the last micro-step
  bool calls_on_step = false;  ///< calls the schedule on ranks without batches
  JoinOptions::Divide divide = JoinOptions::Divide::kByActive;
  at::ScalarType dtype = at::kDouble;
  bool scales = false;
  bool clips = true;
};

int64_t rows_of_batch(const JoinRun& run, int rank, int number) {
  return run.is_weighted ? 1 + (rank + 2 * number) % 4 : 3;
}

std::vector<Batch> batches_of_rank(const Subject& subject, const JoinRun& run, int rank) {
  std::vector<Batch> batches;
  batches.reserve(static_cast<size_t>(run.counts[static_cast<size_t>(rank)]));
  for (int i = 0; i < run.counts[static_cast<size_t>(rank)]; ++i) {
    batches.push_back(draw_batch(subject, run.dtype, rows_of_batch(run, rank, i),
                                 uint64_t{900} +
                                     static_cast<uint64_t>(100) * static_cast<uint64_t>(rank) +
                                     static_cast<uint64_t>(i)));
  }
  return batches;
}

Outcome train_joined(const Subject& subject, const Configuration& configuration, const JoinRun& run,
                     const std::shared_ptr<ProcessGroup>& world) {
  const int rank = world->rank();
  const std::shared_ptr<Net> net =
      prepare(subject.make(), run.dtype, kModelSeed + static_cast<uint64_t>(rank));
  Options options = options_of(configuration);
  set_buckets(options, configuration, 1024);
  if (run.scales) options.loss_scale.emplace();
  if (run.clips) options.max_grad_norm = 0.05;
  const std::unique_ptr<Engine> engine = parallelize(net, make_plan(*net), options, world);
  torch::optim::StepLR schedule(engine->optimizer(), 1, 0.7);

  Outcome outcome;
  const auto step = [&] {
    outcome.grad_norms.push_back(engine->step().grad_norm);
    schedule.step();
  };
  JoinOptions join{.divide = run.divide};
  if (run.calls_on_step) join.on_step = [&] { schedule.step(); };
  std::vector<Batch> batches = batches_of_rank(subject, run, rank);
  int number = 0;
  for (const Batch& batch : engine->join(batches, join)) {
    const bool is_last = ++number % run.micro_steps == 0;
    std::optional<Engine::NoSync> no_sync;
    if (run.adds_locally && !is_last) no_sync.emplace(engine->no_sync());
    const at::Tensor loss = at::mse_loss(net->forward(batch.input, {0, 0}), batch.target);
    if (run.is_weighted) {
      engine->backward(loss, {.weight = batch.input.size(0)});
    } else {
      engine->backward(loss / run.micro_steps);
    }
    no_sync.reset();
    if (is_last) step();
  }
  if (engine->has_gradients()) step();  // for gradients left by the last backwards
  outcome.grad_norms.erase(
      outcome.grad_norms.begin(),
      outcome.grad_norms.end() -
          std::min<std::ptrdiff_t>(1, static_cast<std::ptrdiff_t>(outcome.grad_norms.size())));
  const auto whole = engine->full_parameters();
  outcome.parameters = copy_parameters(*net);
  return outcome;
}

Outcome train_joined(const std::string& model, const Configuration& configuration, int size,
                     const JoinRun& run) {
  std::vector<Outcome> by_rank(static_cast<size_t>(size));
  run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
    by_rank[static_cast<size_t>(world->rank())] =
        train_joined(subject(model), configuration, run, world);
  });
  size_t longest = 0;  // the rank with the most batches has seen all norms
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    EXPECT_EQ(bit_differences(by_rank[rank].parameters, by_rank[0].parameters), "");
    if (run.counts[rank] > run.counts[longest]) longest = rank;
  }
  return by_rank[longest];
}

/// One process that in each step takes the batches of all ranks that still have some.
Outcome join_oracle(const Subject& subject, int size, const JoinRun& run, double off = 0.0) {
  const std::shared_ptr<Net> net = prepare(subject.make(), at::kDouble, kModelSeed);
  torch::optim::AdamW optimizer = plain_optimizer(*net, make_plan(*net));
  torch::optim::StepLR schedule(optimizer, 1, 0.7);
  std::vector<std::vector<Batch>> batches;
  batches.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) batches.push_back(batches_of_rank(subject, run, rank));
  const int most = *std::max_element(run.counts.begin(), run.counts.begin() + size);
  Outcome outcome;
  for (int first = 0; first < most; first += run.micro_steps) {
    const int last = std::min(first + run.micro_steps, most);
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> targets;
    for (int number = first; number < last; ++number) {
      for (const std::vector<Batch>& of_rank : batches) {
        if (number >= static_cast<int>(of_rank.size())) continue;
        inputs.push_back(of_rank[static_cast<size_t>(number)].input);
        targets.push_back(of_rank[static_cast<size_t>(number)].target);
      }
    }
    double factor = 1.0 + off;
    if (!run.is_weighted && run.divide == JoinOptions::Divide::kByActive) {
      factor *= static_cast<double>(last - first) / run.micro_steps;
    } else if (!run.is_weighted) {
      factor *= static_cast<double>(inputs.size()) / (size * run.micro_steps);
    }
    optimizer.zero_grad();
    const at::Tensor output = net->forward(at::cat(inputs), {0, 0});
    (at::mse_loss(output, at::cat(targets)) * factor).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(distinct_parameters(*net), 0.05);
    outcome.grad_norms = {norm};
    optimizer.step();
    schedule.step();
  }
  outcome.parameters = copy_parameters(*net);
  return outcome;
}

const std::vector<JoinRun>& join_runs() {
  static const std::vector<JoinRun> all = {
      {},
      {.counts = kBatchCounts[1], .micro_steps = 2, .calls_on_step = true},
      {.micro_steps = 3, .adds_locally = true},
      {.is_weighted = false},
      {.micro_steps = 2, .is_weighted = false, .calls_on_step = true},
      {.counts = kBatchCounts[1],
       .is_weighted = false,
       .divide = JoinOptions::Divide::kByWorld,
       .scales = true},
      {.counts = kBatchCounts[1], .micro_steps = 2, .is_weighted = false, .adds_locally = true},
  };
  return all;
}

class Join : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};

TEST_P(Join, TrainsAsOneProcessWithTheBatchesOfAllRanks) {
  const std::vector<std::string> models = {"OddMlp", "TiedMlp", "UnusedEverywhere"};
  for (size_t i = 0; i < join_runs().size(); ++i) {
    const Subject& model = subject(models[i % models.size()]);
    const Outcome expected = join_oracle(model, world(), join_runs()[i]);
    size_t turn = i;
    for (const Configuration& configuration : spanning_configurations(world())) {
      if (turn++ % 3 != 0 && configuration.keeps_bits()) continue;  // the others have the same bits
      EXPECT_EQ(differences(train_joined(model.name, configuration, world(), join_runs()[i]),
                            expected, model.tolerance),
                "")
          << configuration << " " << model << " run " << i;
    }
  }
}

TEST_P(Join, HasTheBitsOfDdpUnderEveryConfiguration) {
  for (size_t i = 0; i < join_runs().size(); i += 2) {
    JoinRun run = join_runs()[i];
    run.dtype = at::kFloat;
    const Outcome expected = train_joined("OddMlp", configuration_of(Strategy::kDdp), world(), run);
    for (const Configuration& configuration : spanning_configurations(world())) {
      if (!configuration.keeps_bits() || configuration.name == "ddp") continue;
      EXPECT_EQ(bit_differences(train_joined("OddMlp", configuration, world(), run), expected), "")
          << configuration << " run " << i;
    }
  }
}

TEST_P(Join, FollowsWhereBackwardUpdates) {
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3}) {
    for (const JoinOptions::Divide divide :
         {JoinOptions::Divide::kByActive, JoinOptions::Divide::kByWorld}) {
      Configuration configuration = configuration_of(strategy);
      const JoinRun run{.is_weighted = false, .divide = divide, .clips = false};
      const Outcome in_step = train_joined("OddMlp", configuration, world(), run);
      configuration.optimizer_in_backward = true;
      const Outcome in_backward = train_joined("OddMlp", configuration, world(), run);
      EXPECT_EQ(divide == JoinOptions::Divide::kByWorld ? bit_differences(in_backward, in_step)
                                                        : differences(in_backward, in_step, 1e-12),
                "")
          << configuration;
    }
  }
}

/// If all ranks end together, loops with join() have the same bits as loops without it.
TEST_P(Join, ChangesNoBitWhileAllRanksHaveBatches) {
  const auto train_plainly = [&](const Configuration& configuration, const JoinRun& run) {
    std::map<std::string, at::Tensor> parameters;
    run_ranks(world(), [&](const std::shared_ptr<ProcessGroup>& group) {
      const Subject& model = subject("OddMlp");
      const std::shared_ptr<Net> net = prepare(model.make(), run.dtype, kModelSeed);
      Options options = options_of(configuration);
      set_buckets(options, configuration, 1024);
      options.max_grad_norm = 0.05;
      const std::unique_ptr<Engine> engine = parallelize(net, make_plan(*net), options, group);
      torch::optim::StepLR schedule(engine->optimizer(), 1, 0.7);
      for (const Batch& batch : batches_of_rank(model, run, group->rank())) {
        at::mse_loss(net->forward(batch.input, {0, 0}), batch.target).backward();
        engine->step();
        schedule.step();
      }
      const auto whole = engine->full_parameters();
      if (group->rank() == 0) parameters = copy_parameters(*net);
    });
    return parameters;
  };
  const JoinRun run{.counts = kBatchCounts[2], .is_weighted = false, .dtype = at::kFloat};
  for (const Configuration& configuration : named_configurations()) {
    EXPECT_EQ(bit_differences(train_joined("OddMlp", configuration, world(), run).parameters,
                              train_plainly(configuration, run)),
              "")
        << configuration;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Join, ::testing::ValuesIn(spanning_worlds()));

TEST(JoinNegativeControl, AnotherDivisorIsNoticed) {
  const Configuration zero3 = configuration_of(Strategy::kZero3);
  const JoinRun run{.is_weighted = false};
  const Subject& model = subject("OddMlp");
  const Outcome got = train_joined("OddMlp", zero3, 3, run);
  EXPECT_EQ(differences(got, join_oracle(model, 3, run), model.tolerance), "");
  EXPECT_NE(differences(got, join_oracle(model, 3, run, 1e-6), model.tolerance), "");
  JoinRun by_world = run;
  by_world.divide = JoinOptions::Divide::kByWorld;
  EXPECT_NE(differences(got, join_oracle(model, 3, by_world), 1e-3), "");
}

}  // namespace
}  // namespace tessera::internal::testing
