#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/cost/configuration_sizes.h"
#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/rank_processes.h"

// From the third step on no page is touched for the first time, because a fault costs more than
// computing on the page. Faults are counted in ranks that are processes, because they belong to a
// process. Sanitizers replace malloc and add shadow memory, so nothing is counted there.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace tessera::internal::testing {
namespace {

constexpr const char* kConfigurationVariable = "TESSERA_TEST_CONFIGURATION";
constexpr const char* kPagesVariable = "TESSERA_TEST_PAGES";
constexpr const char* kFreedVariable = "TESSERA_TEST_FREED";

constexpr int kSteps = 5;            // in a count
constexpr int kWindows = 6;          // the minimum counts: a heap settles, a kernel moves pages
constexpr int64_t kFewFaults = 128;  // two blocks of the hundred that a step allocates

int64_t minor_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// 16 layers: per step 5 MiB of activations and as many gradients, in blocks of 40 and 64 pages.
void train_and_count() {
  if (variable(kPagesVariable) == "small") {
    // Uses 4 KiB pages, so that every fault is seen; otherwise one fault could bring in 2 MiB.
    ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  }
  constexpr int kLayers = 16;
  constexpr int64_t kWidth = 256;
  const auto world = init_process_group();
  at::set_num_threads(1);
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers; ++i) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
    model->push_back(torch::nn::Tanh());
  }
  const Configuration configuration = configuration_called(variable(kConfigurationVariable));
  Options options = options_of(configuration);
  options.keep_freed_memory = variable(kFreedVariable) == "kept";
  set_buckets(options, configuration, int64_t{1} << 20);
  // By default prefetching depends on the number of cores.
  if (configuration.splits_parameters()) options.prefetch = false;
  const auto engine = parallelize(model, torch::optim::AdamWOptions(0.001), options, world);
  const at::Tensor input = at::ones({160, kWidth});
  const auto train = [&] {
    model->forward(input).pow(2).mean().backward();
    engine->step();
  };
  train();
  train();
  const int64_t allocations = engine->memory().allocations();
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int window = 0; window < kWindows; ++window) {
    const int64_t before = minor_faults();
    for (int step = 0; step < kSteps; ++step) train();
    const int64_t faults = minor_faults() - before;
    std::cout << "window of " << kSteps << " steps: " << faults << " faults\n";
    least = std::min(least, faults);
  }
  std::cout << "result " << least << " " << engine->memory().now().total() / ::getpagesize() << " "
            << engine->memory().allocations() - allocations << "\n";
}

const RankProcessBody kTrain("page_faults", train_and_count);

struct Count {
  int64_t faults = 0;       ///< in kSteps steps
  int64_t pages = 0;        ///< that the engine's own buffers have
  int64_t allocations = 0;  ///< of the engine, after the second step
};

enum class Pages : uint8_t { kSmall, kAsUsual };
enum class Freed : uint8_t { kKept, kGivenBack };

/// Counts for each rank.
std::vector<Count> count_faults(const Configuration& configuration, int size, Pages pages,
                                Freed freed) {
  RankProcessOptions options;
  // The user's malloc settings must not have an effect.
  for (const char* name : {"MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_",
                           "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"}) {
    options.environment[name] = "";
  }
  // glibc's initial threshold. By default it grows with freed blocks, so the number of blocks given
  // back would be random.
  if (freed == Freed::kGivenBack) options.environment["MALLOC_MMAP_THRESHOLD_"] = "131072";
  options.environment[kConfigurationVariable] = configuration.name;
  options.environment[kPagesVariable] = pages == Pages::kSmall ? "small" : "as usual";
  options.environment[kFreedVariable] = freed == Freed::kKept ? "kept" : "given back";
  std::vector<Count> counts;
  for (const RankResult& rank : run_rank_processes(size, "page_faults", options)) {
    EXPECT_EQ(rank.exit_code, 0) << rank.output;
    Count count{.faults = -1};
    const size_t place = rank.output.find("result ");
    EXPECT_NE(place, std::string::npos) << rank.output;
    if (place != std::string::npos) {
      std::istringstream(rank.output.substr(place + 7)) >> count.faults >> count.pages >>
          count.allocations;
    }
    counts.push_back(count);
  }
  return counts;
}

class PageFaults : public ::testing::TestWithParam<ConfigurationSize> {
 protected:
  const Configuration& configuration() const { return GetParam().first; }
  int size() const { return GetParam().second; }
  void record(const std::vector<Count>& counts) {
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      RecordProperty(absl::StrCat("faults_of_rank_", rank), absl::StrCat(counts[rank].faults));
    }
  }
};

TEST_P(PageFaults, AStepAfterTheSecondTouchesNoNewMemory) {
  const std::vector<Count> counts =
      count_faults(configuration(), size(), Pages::kSmall, Freed::kKept);
  record(counts);
  for (const Count& count : counts) {
    EXPECT_GE(count.faults, 0);
    EXPECT_LT(count.faults, kFewFaults);
    EXPECT_GT(count.pages, 1024) << "the buffers are too small to show anything";
    EXPECT_EQ(count.allocations, 0);
  }
}

std::vector<ConfigurationSize> configurations_that_fault() {
  std::vector<ConfigurationSize> all;
  const std::vector<ConfigurationSize> usual = usual_configuration_sizes();
  for (size_t i = 0; i < usual.size(); ++i) {
    if (has_turn(i, 3)) all.push_back(usual[i]);
  }
  all.emplace_back(hybrid(3, 3, 3), 3);
  if (takes_all_rows()) all.emplace_back(hybrid(2, 2, 2), 4);
  return all;
}

INSTANTIATE_TEST_SUITE_P(, PageFaults, ::testing::ValuesIn(configurations_that_fault()),
                         &name_of_configuration_size);

/// As users run it: the kernel may give huge pages.
TEST(PageFaultsInHugePages, AreAsFew) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    const Configuration configuration = configuration_of(strategy);
    for (const Count& count : count_faults(configuration, 2, Pages::kAsUsual, Freed::kKept)) {
      EXPECT_GE(count.faults, 0) << configuration;
      EXPECT_LT(count.faults, kFewFaults) << configuration;
    }
  }
}

/// Negative control: memory that malloc returns to the kernel faults again in every step.
TEST(PageFaultsControl, MemoryThatIsGivenBackIsFaultedInAgainEveryStep) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    const Configuration configuration = configuration_of(strategy);
    for (const Count& count : count_faults(configuration, 2, Pages::kSmall, Freed::kGivenBack)) {
      RecordProperty(absl::StrCat("faults_", configuration.name), absl::StrCat(count.faults));
      EXPECT_GT(count.faults, int64_t{kSteps} * 1000) << configuration;
    }
  }
}

}  // namespace
}  // namespace tessera::internal::testing

#endif
