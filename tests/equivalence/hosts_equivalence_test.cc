// The table of strategies on two hosts with two ranks each: other bits than on one host, but the
// same under every configuration.
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/delayed_group.h"
#include "tessera/tests/support/group_without_windows.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/rank_hosts.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

constexpr int kRanksOnHosts = 4;

struct HostsCase {
  Configuration configuration;
  Subject subject;
  Schedule schedule;
  bool has_windows;
};

std::string hosts_name_of(const ::testing::TestParamInfo<HostsCase>& info) {
  const HostsCase& run = info.param;
  return run.configuration.name + "_" + run.subject.name + "_" + run.schedule.name +
         (run.has_windows ? "_Windows" : "");
}

std::ostream& operator<<(std::ostream& stream, const HostsCase& run) {
  return stream << run.configuration << ", " << run.subject << ", " << run.schedule;
}

Outcome train_on_hosts(const HostsCase& run, at::ScalarType dtype, bool is_delayed = false) {
  const auto decorate = [&](std::shared_ptr<ProcessGroup> world) {
    auto group = as_on_hosts(world, hosts_in_order(2, 2));
    EXPECT_EQ(group->backend(), "hosts");
    if (!run.has_windows) group = std::make_shared<GroupWithoutWindows>(group);
    if (is_delayed) group = std::make_shared<DelayedGroup>(group);
    return group;
  };
  return train_on_threads(run.subject, dtype, run.configuration, run.schedule, kRanksOnHosts, {},
                          decorate);
}

const Outcome& ddp_on_hosts(HostsCase run) {
  static std::map<std::string, Outcome> remembered;
  const std::string key = run.subject.name + " " + run.schedule.name;
  auto it = remembered.find(key);
  if (it == remembered.end()) {
    run.configuration = configuration_of(Strategy::kDdp);
    it = remembered.emplace(key, train_on_hosts(run, at::kFloat)).first;
  }
  return it->second;
}

/// Every configuration with one model each; configurations with windows if the ranks' branches
/// differ.
std::vector<HostsCase> hosts_cases() {
  std::vector<HostsCase> cases;
  const std::vector<const char*> models = {"Blocks",   "TiedBlocks",       "MixedDtypes",
                                           "Branches", "UnusedEverywhere", "OddMlp"};
  for (const bool has_windows : {true, false}) {
    for (const Configuration& configuration : spanning_configurations(kRanksOnHosts)) {
      const int second = configuration.reshard_after_forward.value_or(1);
      const bool has_second_shards =
          second > 1 && second < configuration.degrees_at(kRanksOnHosts).parameters;
      if (!configuration.keeps_bits() || (!has_windows && has_second_shards)) continue;
      for (size_t i = 0; i < 2; ++i) {
        const std::string model = models[(2 * cases.size() + 3 * i) % models.size()];
        if (model == "Branches" && !has_windows && configuration.splits_parameters()) continue;
        cases.push_back({configuration, subject(model),
                         schedules()[cases.size() % schedules().size()], has_windows});
      }
    }
  }
  return cases;
}

class HostsEquivalence : public ::testing::TestWithParam<HostsCase> {};

TEST_P(HostsEquivalence, TrainsToTheBitsOfDdpOnTheSameHosts) {
  EXPECT_EQ(bit_differences(train_on_hosts(GetParam(), at::kFloat), ddp_on_hosts(GetParam())), "");
}

INSTANTIATE_TEST_SUITE_P(, HostsEquivalence, ::testing::ValuesIn(hosts_cases()), hosts_name_of);

TEST(EquivalenceOverHosts, IsThatOfAPlainLoopButNotOfOneHostToTheBit) {
  HostsCase run{configuration_of(Strategy::kZero3), subject("Blocks"), schedules()[0], true};
  const Outcome got = train_on_hosts(run, at::kDouble);
  EXPECT_EQ(
      differences(got, oracle(run.subject, run.schedule, kRanksOnHosts), run.subject.tolerance),
      "");
  EXPECT_NE(bit_differences(ddp_on_hosts(run), outcome_of_ddp(run.subject, at::kFloat, {},
                                                              run.schedule, kRanksOnHosts)),
            "");
}

TEST(EquivalenceOverHosts, DoesNotDependOnWhenCollectivesRun) {
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero3}) {
    const HostsCase run{apart(configuration_of(strategy)), subject("Blocks"), schedules()[1], true};
    EXPECT_EQ(
        bit_differences(train_on_hosts(run, at::kFloat, /*is_delayed=*/true), ddp_on_hosts(run)),
        "");
  }
}

TEST(EquivalenceOverHosts, OfAnyWorldSizeIsThatOfOneHost) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    const Configuration configuration = configuration_of(strategy);
    const Schedule& schedule = schedules()[0];
    TrainOptions options;
    options.adjust = [](Options& all) { all.reproducible = Reproducible::kAnyWorldSize; };
    const auto train = [&](const Decorate& decorate, int ranks = kRanksOnHosts) {
      return train_on_threads(subject("Blocks"), at::kFloat, configuration, schedule, ranks,
                              options, decorate);
    };
    const auto on = [](std::vector<int> hosts) {
      return [=](std::shared_ptr<ProcessGroup> world) { return as_on_hosts(world, hosts); };
    };
    EXPECT_EQ(bit_differences(train(on(hosts_in_order(2, 2))), train({})), "");
    try {
      train(on(hosts_in_order(3, 2)), 6);
      FAIL() << "nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("reproducible: is set on backend 'hosts'"));
    }
  }
}

}  // namespace
}  // namespace tessera::internal::testing
