// Training under a limit of private memory that a view of all parameters does not fit into.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/process/private_room.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/wrap_rules.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr rlim_t kMiB = rlim_t{1} << 20;
constexpr const char* kWarning = "every rank keeps a copy of its own";

/// Leaves this process `room_mib` beyond what it has.
void limit_private_memory(rlim_t room_mib) {
  const rlim_t high = rlim_t{1} << 50;
  rlimit limit{high, high};
  TORCH_CHECK(::setrlimit(RLIMIT_DATA, &limit) == 0, "setrlimit");
  const rlim_t used = high - static_cast<rlim_t>(private_room().bytes);
  limit.rlim_cur = used + room_mib * kMiB;
  TORCH_CHECK(::setrlimit(RLIMIT_DATA, &limit) == 0, "setrlimit");
}

/// 64 MiB of parameters.
const RankProcessBody kTrains("trains_in_a_private_room", [] {
  const auto world = join();
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < 16; ++i) {
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(1024, 1024).bias(false)));
  }
  if (const char* room = std::getenv("TEST_ROOM_MIB")) limit_private_memory(std::stoul(room));
  Options options{.strategy = *parse_strategy(std::getenv("TEST_STRATEGY"))};
  if (options.strategy == Strategy::kZero3) options.wrap = wrap_by_type<torch::nn::LinearImpl>();
  const auto engine = parallelize(model, torch::optim::SGDOptions(1e-3), options, world);
  for (int step = 0; step < 2; ++step) {
    model->forward(torch::full({1, 1024}, 1.0 + world->rank() + step)).sum().backward();
    engine->step();
  }
  const auto whole = engine->full_parameters();
  double sum = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    sum = sum * 1.5 + parameter.to(at::kDouble).sum().item<double>();
  }
  std::printf("sum %a\n", sum);
});

/// What one rank prints of the trained parameters; `output` becomes rank 0's.
std::string sum_after_training(const std::string& strategy, const std::string& room_mib,
                               std::string& output) {
  const auto results = run_rank_processes(
      2, "trains_in_a_private_room",
      {.environment = {{"TEST_STRATEGY", strategy}, {"TEST_ROOM_MIB", room_mib}}});
  std::set<std::string> sums;
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << strategy << " in " << room_mib << ": " << result.output;
    const size_t begin = result.output.find("sum ");
    sums.insert(begin == std::string::npos ? "none" : result.output.substr(begin));
  }
  output = results[0].output;
  EXPECT_EQ(sums.size(), 1U) << "the ranks' sums";
  return *sums.begin();
}

TEST(PrivateRoom, OfLessThanTheParametersTakesAwaySharingAndNothingElse) {
  for (const char* const strategy : {"zero1", "zero3"}) {
    std::string output;
    const std::string expected = sum_after_training(strategy, "", output);
    EXPECT_THAT(output, Not(HasSubstr(kWarning))) << "the control";
    EXPECT_EQ(sum_after_training(strategy, /*room_mib=*/"96", output), expected) << strategy;
    EXPECT_THAT(output, HasSubstr(kWarning));
    EXPECT_THAT(output, HasSubstr("ulimit -d"));
  }
}

}  // namespace
}  // namespace tessera::internal::testing
