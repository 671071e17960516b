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

#include "tessera/parallelize.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/training.h"

// The equivalence suite with ranks that are processes: separate address spaces, a real rendezvous,
// and only the arenas shared.

namespace tessera::internal::testing {
namespace {

constexpr const char* kSeedVariable = "TESSERA_TEST_SEED_SHIFT";

/// The number of schedules per model; models take them in turn.
int schedules_of_a_model() { return takes_all_rows() ? static_cast<int>(schedules().size()) : 1; }

/// Trains every listed model under one strategy and prints one line of hashes for each.
void train_and_print(const Configuration& configuration) {
  const auto world = init_process_group();
  at::set_num_threads(1);
  size_t turn = static_cast<size_t>(world->size());
  for (const char* name :
       {"OddMlp", "TiedMlp", "Branches", "CheckpointedTwice", "BatchNorm", "SparseEmbedding",
        "Lstm", "MixedDtypes", "Blocks", "CheckpointedBlocks", "BranchingBlocks"}) {
    for (int i = 0; i < schedules_of_a_model(); ++i) {
      const Schedule& schedule = schedules()[turn++ % schedules().size()];
      uint64_t hash = 0;
      const Outcome outcome =
          train(subject(name), at::kFloat, configuration, schedule, world,
                {.after_step = [&hash](Engine& engine, int) { hash = parameter_hash(engine); }});
      std::ostringstream line;
      line << name << " " << schedule.name << " " << std::hex << hash << std::hexfloat;
      for (const double norm : outcome.grad_norms) line << " " << norm;
      std::cout << "result " << line.str() << "\n";
    }
  }
}

/// Trains a model with dropout, which uses the process's own random number generator.
void train_with_dropout(const Configuration& configuration) {
  const auto world = init_process_group();
  const char* shift = std::getenv(kSeedVariable);
  torch::manual_seed(static_cast<uint64_t>(100 + world->rank() + (shift ? std::atoi(shift) : 0)));
  torch::nn::Sequential model(torch::nn::Linear(7, 13), torch::nn::Tanh(), torch::nn::Dropout(0.5),
                              torch::nn::Linear(13, 5));
  const auto engine =
      parallelize(model, torch::optim::AdamWOptions(0.01),
                  options_of(configuration, {.name = "", .bucket_bytes = 1024}), world);
  for (int step = 0; step < 4; ++step) {
    model->forward(at::randn({4, 7})).pow(2).mean().backward();
    engine->step();
  }
  std::cout << "result dropout " << std::hex << parameter_hash(*engine) << "\n";
}

const char* const kConfigurationVariable = "TESSERA_TEST_CONFIGURATION";

/// The configuration of a job, from its environment.
Configuration configuration_of_job() {
  return configuration_called(std::getenv(kConfigurationVariable));
}

const RankProcessBody kTrain("equivalence", [] { train_and_print(configuration_of_job()); });
const RankProcessBody kDropout("dropout", [] { train_with_dropout(configuration_of_job()); });

/// The result lines of a job, the same on all its ranks.
std::string results(int size, const std::string& body, const std::string& configuration,
                    RankProcessOptions options = {}) {
  options.environment[kConfigurationVariable] = configuration;
  std::set<std::string> of_ranks;
  for (const RankResult& rank : run_rank_processes(size, body, options)) {
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

/// Configurations that must give the same result as ddp.
std::vector<std::string> configurations_of_job(int size) {
  std::vector<std::string> names = {"zero1", "zero2", "zero3", "zero3_reshard_1"};
  if (size == 2) names.emplace_back("zero3_blocks");
  if (size == 3) names.emplace_back("hybrid_3_3_3");
  if (size == 4) names = {"zero3_reshard_2", "hybrid_2_2_2", "hybrid_2_4_4"};
  std::vector<std::string> taken;
  for (size_t i = 0; i < names.size(); ++i) {
    if (has_turn(i + static_cast<size_t>(size), 2)) taken.push_back(names[i]);
  }
  return taken;
}

TEST_P(ProcessEquivalence, AllConfigurationsPrintTheSameHashesAndNorms) {
  const std::string expected = results(GetParam(), "equivalence", "ddp");
  EXPECT_EQ(std::count(expected.begin(), expected.end(), '\n'), 11 * schedules_of_a_model());
  for (const std::string& configuration : configurations_of_job(GetParam())) {
    EXPECT_EQ(results(GetParam(), "equivalence", configuration), expected) << configuration;
  }
}

TEST_P(ProcessEquivalence, ModelsThatDrawRandomNumbersTrainAlike) {
  const std::string expected = results(GetParam(), "dropout", "ddp");
  for (const std::string& configuration : configurations_of_job(GetParam())) {
    EXPECT_EQ(results(GetParam(), "dropout", configuration), expected) << configuration;
  }
  // The negative control: other random numbers give another hash.
  RankProcessOptions other_numbers;
  other_numbers.environment[kSeedVariable] = "1";
  EXPECT_NE(results(GetParam(), "dropout", "zero3", other_numbers), expected);
}

INSTANTIATE_TEST_SUITE_P(, ProcessEquivalence, ::testing::Values(2, 3, 4),
                         [](const auto& info) { return "World" + std::to_string(info.param); });

}  // namespace
}  // namespace tessera::internal::testing
