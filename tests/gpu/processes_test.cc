// Ranks that are processes and share one GPU, over shared memory (backend shm), train under every
// strategy to the same result as on the CPU. Threads would not work: LibTorch runs all backwards of
// one GPU on one thread, and the ranks would wait for each other in it.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/rendezvous.h"
#include "tessera/tests/gpu/gpu_comparison.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal::testing {
namespace {

constexpr const char* kModel = "UnusedEverywhere";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Configuration configuration_of_job() {
  Configuration configuration = configuration_called(variable("PROCESSES_CONFIGURATION"));
  if (variable("PROCESSES_WAITS") == "1") configuration.asynchronous_step = false;
  return configuration;
}

const Schedule& schedule_of_job() { return schedules().at(2); }  // ThriceClipped

std::string file_of(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/rank", rank);
}

/// Saves parameters in the order of their names, losses and norms.
void save(const Outcome& outcome, const std::string& path) {
  std::vector<at::Tensor> all = {torch::tensor(outcome.losses, at::kDouble),
                                 torch::tensor(outcome.grad_norms, at::kDouble)};
  for (const auto& [name, tensor] : outcome.parameters) all.push_back(tensor);
  torch::save(all, path);
}

std::vector<double> values_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<double>(), tensor.const_data_ptr<double>() + tensor.numel()};
}

/// `names`: any outcome of the same model.
Outcome load(const std::string& path, const Outcome& names) {
  std::vector<at::Tensor> all;
  torch::load(all, path);
  Outcome outcome;
  outcome.losses = values_of(all.at(0));
  outcome.grad_norms = values_of(all.at(1));
  size_t next = 2;
  for (const auto& [name, tensor] : names.parameters) outcome.parameters[name] = all.at(next++);
  return outcome;
}

const RankProcessBody kTrain("train_on_one_gpu", [] {
  const auto world = init_process_group({.device = at::kCUDA, .backend = "shm"});
  EXPECT_TRUE(world->device().is_cuda());
  const Outcome outcome =
      train(subject(kModel), at::kFloat, configuration_of_job(), schedule_of_job(), world);
  save(outcome, file_of(variable("PROCESSES_OUT"), world->rank()));
});

enum class Known : uint8_t { kInNextStep, kInStep };
using ProcessCase = std::tuple<Configuration, int /*world*/, Known>;

std::string process_name(const ::testing::TestParamInfo<ProcessCase>& info) {
  const auto& [configuration, world, known] = info.param;
  return absl::StrCat(configuration.name, "_World", world,
                      known == Known::kInNextStep ? "" : "_waiting");
}

/// Runs the job and returns the outcome of each rank; if one fails, returns nothing and the test
/// fails.
std::vector<Outcome> run_job(const Configuration& configuration, int world, Known known,
                             const Outcome& names) {
  const TemporaryDirectory folder;
  const auto results = run_rank_processes(
      world, "train_on_one_gpu",
      {.environment = {{"PROCESSES_CONFIGURATION", configuration.name},
                       {"PROCESSES_WAITS", known == Known::kInNextStep ? "" : "1"},
                       {"PROCESSES_OUT", folder.path()},
                       {"FAKE_CUDA_DEVICES", "1"}},
       .deadline = std::chrono::seconds(120)});
  std::vector<Outcome> outcomes;
  for (int rank = 0; rank < world; ++rank) {
    const RankResult& result = results[static_cast<size_t>(rank)];
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ":\n" << result.output;
    if (result.exit_code != 0) return {};
    outcomes.push_back(load(file_of(folder.path(), rank), names));
  }
  return outcomes;
}

class ProcessesOnOneGpu : public ::testing::TestWithParam<ProcessCase> {};

TEST_P(ProcessesOnOneGpu, TrainAsOnTheCpu) {
  const auto& [configuration, world, known] = GetParam();
  const Outcome expected =
      train_on_threads(subject(kModel), at::kFloat, configuration, schedule_of_job(), world);
  const std::vector<Outcome> outcomes = run_job(configuration, world, known, expected);
  ASSERT_EQ(outcomes.size(), static_cast<size_t>(world));
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    Outcome of_rank = expected;
    of_rank.losses = expected.losses_by_rank[rank];
    of_rank.losses_by_rank = {};
    EXPECT_EQ(gpu_differences(outcomes[rank], of_rank), "") << "rank " << rank;
  }
}

std::vector<int> sizes_of_jobs() {
  return takes_all_rows() ? std::vector<int>{2, 3} : std::vector<int>{3};
}

INSTANTIATE_TEST_SUITE_P(Strategies, ProcessesOnOneGpu,
                         ::testing::Combine(::testing::ValuesIn(named_configurations()),
                                            ::testing::ValuesIn(sizes_of_jobs()),
                                            ::testing::Values(Known::kInNextStep, Known::kInStep)),
                         process_name);

TEST(GpuDifferences, SeeAnotherRun) {
  const Schedule& schedule = schedule_of_job();
  const Configuration configuration = configuration_of(Strategy::kDdp);
  const Outcome two = train_on_threads(subject(kModel), at::kFloat, configuration, schedule, 2);
  const Outcome three = train_on_threads(subject(kModel), at::kFloat, configuration, schedule, 3);
  EXPECT_NE(gpu_differences(two, three), "") << "the negative control";
}

}  // namespace
}  // namespace tessera::internal::testing
