#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/core/comm/rendezvous.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/training.h"
#include "tessera/zero/parallelize.h"

// The equivalence suite once more with ranks that are processes: another address space each, real
// rendezvous, nothing shared but the arenas.

namespace tessera::testing {
namespace {

constexpr const char* kSeedVariable = "TESSERA_TEST_SEED_SHIFT";

/// Trains every listed model under one strategy and prints one line of hashes for each.
void train_and_print(Strategy strategy) {
  const auto world = init_process_group();
  at::set_num_threads(1);
  for (const char* name : {"OddMlp", "TiedMlp", "Branches", "CheckpointedTwice", "BatchNorm",
                           "SparseEmbedding", "Lstm", "MixedDtypes"}) {
    for (const Schedule& schedule : schedules()) {
      uint64_t hash = 0;
      const Outcome outcome =
          train(subject(name), at::kFloat, strategy, schedule, world,
                {.after_step = [&hash](Engine& engine, int) { hash = engine.parameter_hash(); }});
      std::ostringstream line;
      line << name << " " << schedule.name << " " << std::hex << hash << std::hexfloat;
      for (const double norm : outcome.grad_norms) line << " " << norm;
      std::cout << "result " << line.str() << "\n";
    }
  }
}

/// A model with dropout: it draws from the process's own generator.
void train_with_dropout(Strategy strategy) {
  const auto world = init_process_group();
  const char* shift = std::getenv(kSeedVariable);
  torch::manual_seed(static_cast<uint64_t>(100 + world->rank() + (shift ? std::atoi(shift) : 0)));
  torch::nn::Sequential model(torch::nn::Linear(7, 13), torch::nn::Tanh(), torch::nn::Dropout(0.5),
                              torch::nn::Linear(13, 5));
  const auto engine =
      parallelize(model, torch::optim::AdamWOptions(0.01),
                  {.strategy = strategy, .bucket_bytes = 1024, .first_bucket_bytes = 1024}, world);
  for (int step = 0; step < 4; ++step) {
    model->forward(at::randn({4, 7})).pow(2).mean().backward();
    engine->step();
  }
  std::cout << "result dropout " << std::hex << engine->parameter_hash() << "\n";
}

const RankProcessBody kDdp("equivalence_ddp", [] { train_and_print(Strategy::kDdp); });
const RankProcessBody kZero1("equivalence_zero1", [] { train_and_print(Strategy::kZero1); });
const RankProcessBody kZero2("equivalence_zero2", [] { train_and_print(Strategy::kZero2); });
const RankProcessBody kDropoutDdp("dropout_ddp", [] { train_with_dropout(Strategy::kDdp); });
const RankProcessBody kDropoutZero1("dropout_zero1", [] { train_with_dropout(Strategy::kZero1); });
const RankProcessBody kDropoutZero2("dropout_zero2", [] { train_with_dropout(Strategy::kZero2); });

/// The result lines that all ranks of a job have printed alike.
std::string results(int size, const std::string& body, RankProcessOptions options = {}) {
  std::set<std::string> of_ranks;
  for (const RankResult& rank : run_rank_processes(size, body, std::move(options))) {
    EXPECT_EQ(rank.exit_code, 0) << rank.output;
    std::istringstream output(rank.output);
    std::string lines;
    for (std::string line; std::getline(output, line);) {
      if (line.rfind("result ", 0) == 0) lines += line + "\n";
    }
    of_ranks.insert(lines);
  }
  EXPECT_EQ(of_ranks.size(), 1u) << "ranks printed different results";
  EXPECT_FALSE(of_ranks.begin()->empty());
  return *of_ranks.begin();
}

class ProcessEquivalence : public ::testing::TestWithParam<int> {};

TEST_P(ProcessEquivalence, AllStrategiesPrintTheSameHashesAndNorms) {
  const std::string expected = results(GetParam(), "equivalence_ddp");
  EXPECT_EQ(std::count(expected.begin(), expected.end(), '\n'), 32);
  EXPECT_EQ(results(GetParam(), "equivalence_zero1"), expected);
  EXPECT_EQ(results(GetParam(), "equivalence_zero2"), expected);
}

TEST_P(ProcessEquivalence, ModelsThatDrawRandomNumbersTrainAlike) {
  const std::string expected = results(GetParam(), "dropout_ddp");
  EXPECT_EQ(results(GetParam(), "dropout_zero1"), expected);
  EXPECT_EQ(results(GetParam(), "dropout_zero2"), expected);
  // The negative control: other random numbers give another hash.
  RankProcessOptions other_numbers;
  other_numbers.environment[kSeedVariable] = "1";
  EXPECT_NE(results(GetParam(), "dropout_zero2", other_numbers), expected);
}

INSTANTIATE_TEST_SUITE_P(, ProcessEquivalence, ::testing::Values(2, 3),
                         [](const auto& info) { return "World" + std::to_string(info.param); });

}  // namespace
}  // namespace tessera::testing
