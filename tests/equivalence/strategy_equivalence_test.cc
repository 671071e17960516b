#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/group_without_windows.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/training.h"

// The central test: the configuration of a strategy decides where state is stored, never what is
// computed. In fp64 configurations are compared with a plain LibTorch loop on the concatenated
// batch; in fp32 and with bf16 parameters they must have ddp's bits. With all rows
// (takes_all_rows()) ddp and zero3 train every model under every schedule in every world, and each
// other configuration trains every model, with schedules in turn. Without them each configuration
// trains every model once (a hybrid every third one), with worlds and schedules in turn.

namespace tessera::internal::testing {
namespace {

struct Case {
  Configuration configuration;
  int world;
  Subject subject;
  Schedule schedule;
  at::ScalarType dtype = at::kFloat;
};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto& [configuration, world, subject, schedule, dtype] = info.param;
  return configuration.name + "_World" + std::to_string(world) + "_" + subject.name + "_" +
         schedule.name;
}

std::ostream& operator<<(std::ostream& stream, const Case& run) {
  return stream << run.configuration << " at world " << run.world << ", " << run.subject << ", "
                << run.schedule;
}

/// The result of the same run under ddp.
const Outcome& of_ddp(const Case& run) {
  return outcome_of_ddp(run.subject, run.dtype, run.configuration.precision, run.schedule,
                        run.world);
}

bool is_fully_covered(const Configuration& configuration) {
  return takes_all_rows() && (configuration.name == "ddp" || configuration.name == "zero3");
}

/// Returns true for every third `i`, starting elsewhere for each `world`.
bool is_one_of_three(size_t i, size_t world) { return has_turn(i + world, 3); }

/// The worlds of this suite that have `configuration`.
std::vector<int> worlds_of(const Configuration& configuration) {
  std::vector<int> worlds;
  for (const int world : {1, 2, 3, 4, 6}) {
    // The large world only for hybrids that need it.
    if (world == 6 && !configuration.degrees.has_value()) continue;
    for (const Configuration& other : configurations_of_world(world)) {
      if (other.name == configuration.name) worlds.push_back(world);
    }
  }
  return worlds;
}

/// The chosen part of all combinations of configurations, worlds, models and schedules.
std::vector<Case> covering(const std::vector<Subject>& subjects,
                           const std::function<bool(const Configuration&)>& wants) {
  std::vector<Configuration> configurations;
  std::set<std::string> names;
  for (const int world : {1, 2, 3, 4, 6}) {
    for (Configuration& configuration : configurations_of_world(world)) {
      if (!wants(configuration) || !names.insert(configuration.name).second) continue;
      configurations.push_back(std::move(configuration));
    }
  }
  std::vector<Case> cases;
  size_t turn = 0;
  for (size_t c = 0; c < configurations.size(); ++c) {
    const std::vector<int> worlds = worlds_of(configurations[c]);
    const bool is_hybrid = configurations[c].degrees.has_value();
    for (size_t s = 0; s < subjects.size(); ++s) {
      if (is_hybrid && !has_turn(c + s, 3)) continue;
      ++turn;
      for (size_t w = 0; w < worlds.size(); ++w) {
        if (!has_turn(w + worlds.size() - turn % worlds.size(), worlds.size())) continue;
        for (size_t i = 0; i < schedules().size(); ++i) {
          // A model takes another schedule under each configuration and in each world.
          const bool is_next = i == (s + c + w) % schedules().size();
          if (!is_fully_covered(configurations[c]) && !is_next) continue;
          cases.push_back({configurations[c], worlds[w], subjects[s], schedules()[i]});
        }
      }
    }
  }
  return cases;
}

class OracleEquivalence : public ::testing::TestWithParam<Case> {};

TEST_P(OracleEquivalence, TrainsLikeAPlainLoopOnTheConcatenatedBatch) {
  static std::map<std::string, Outcome> remembered;
  const Case& run = GetParam();
  const std::string key =
      std::to_string(run.world) + " " + run.subject.name + " " + run.schedule.name;
  auto it = remembered.find(key);
  if (it == remembered.end()) {
    it = remembered.emplace(key, oracle(run.subject, run.schedule, run.world)).first;
  }
  const Outcome got =
      train_on_threads(run.subject, at::kDouble, run.configuration, run.schedule, run.world);
  EXPECT_EQ(differences(got, it->second, run.subject.tolerance), "");
}

std::vector<Subject> comparable_subjects() {
  std::vector<Subject> comparable;
  for (const Subject& subject : subjects()) {
    if (std::isfinite(subject.tolerance)) comparable.push_back(subject);
  }
  return comparable;
}

/// Configurations with ddp's bits need no oracle of their own; zero3 has one nevertheless.
bool has_own_oracle(const Configuration& configuration) {
  return configuration.name == "ddp" || configuration.name == "zero3" ||
         !configuration.keeps_bits();
}

INSTANTIATE_TEST_SUITE_P(Scenario39, OracleEquivalence,
                         ::testing::ValuesIn(covering(comparable_subjects(), has_own_oracle)),
                         name_of);

class StrategyEquivalence : public ::testing::TestWithParam<Case> {};

TEST_P(StrategyEquivalence, TrainsToTheBitsOfDdp) {
  const Case& run = GetParam();
  const Outcome got =
      train_on_threads(run.subject, run.dtype, run.configuration, run.schedule, run.world);
  EXPECT_EQ(bit_differences(got, of_ddp(run)), "");
}

INSTANTIATE_TEST_SUITE_P(Scenario39, StrategyEquivalence,
                         ::testing::ValuesIn(covering(subjects(),
                                                      [](const Configuration& configuration) {
                                                        return configuration.keeps_bits() &&
                                                               configuration.name != "ddp";
                                                      })),
                         name_of);

/// Configurations of ranks on different hosts. There units are gathered by all ranks together, so
/// models whose ranks take different branches need configurations with whole parameters.
std::vector<Case> cases_without_windows() {
  std::vector<Case> cases;
  size_t turn = 0;
  for (const int world : {2, 3, 4}) {
    for (const Configuration& configuration : configurations_of_world(world)) {
      const int ranks = configuration.reshard_after_forward.value_or(1);
      const bool needs_second_shards =
          ranks > 1 && ranks < configuration.degrees_at(world).parameters;
      if (!configuration.keeps_bits() || needs_second_shards) continue;
      for (const char* model : {"UnusedEverywhere", "MixedDtypes", "Blocks", "CheckpointedBlocks",
                                "TiedBlocks", "Branches"}) {
        if (model == std::string("Branches") && configuration.splits_parameters()) continue;
        if (!is_one_of_three(turn++, static_cast<size_t>(world))) continue;
        cases.push_back(
            {configuration, world, subject(model), schedules()[cases.size() % schedules().size()]});
      }
    }
  }
  return cases;
}

class EquivalenceWithoutWindows : public ::testing::TestWithParam<Case> {};

/// Configurations that train on windows also end with ddp's bits.
TEST_P(EquivalenceWithoutWindows, TrainsToTheBitsOfDdpOnWindows) {
  const Case& run = GetParam();
  const auto apart_hosts = [](std::shared_ptr<ProcessGroup> world) {
    EXPECT_FALSE(GroupWithoutWindows(world).can().one_sided_reads);
    return std::make_shared<GroupWithoutWindows>(std::move(world));
  };
  const Outcome got = train_on_threads(run.subject, run.dtype, run.configuration, run.schedule,
                                       run.world, {}, apart_hosts);
  EXPECT_EQ(bit_differences(got, of_ddp(run)), "");
}

INSTANTIATE_TEST_SUITE_P(, EquivalenceWithoutWindows, ::testing::ValuesIn(cases_without_windows()),
                         name_of);

/// 16-bit parameters: either created in bf16 by the user, or converted from a model in fp32, whose
/// values the masters keep.
std::vector<Case> bf16_cases() {
  std::vector<Case> cases;
  size_t turn = 0;
  for (const int world : {1, 2, 3, 4}) {
    for (Configuration configuration : configurations_of_world(world)) {
      if (configuration.name == "ddp" || !configuration.keeps_bits()) continue;
      for (const char* model : {"OddMlp", "Blocks", "CheckpointedBlocks", "TiedBlocks",
                                "FrozenBlocks", "ThreeUnits", "Branches", "Embedding"}) {
        if (!is_one_of_three(turn++, static_cast<size_t>(world))) continue;
        const Schedule& schedule = schedules()[cases.size() / 2 % schedules().size()];
        const bool is_converted = cases.size() % 2 == 0;
        if (is_converted) configuration.precision.parameters = at::kBFloat16;
        cases.push_back({configuration, world, subject(model), schedule,
                         is_converted ? at::kFloat : at::kBFloat16});
      }
    }
  }
  return cases;
}

class Bf16Equivalence : public ::testing::TestWithParam<Case> {};

TEST_P(Bf16Equivalence, TrainsToTheBitsOfDdp) {
  const Case& run = GetParam();
  const Outcome got =
      train_on_threads(run.subject, run.dtype, run.configuration, run.schedule, run.world);
  EXPECT_EQ(got.parameters.begin()->second.scalar_type(), at::kBFloat16);
  EXPECT_EQ(bit_differences(got, of_ddp(run)), "");
}

INSTANTIATE_TEST_SUITE_P(, Bf16Equivalence, ::testing::ValuesIn(bf16_cases()), name_of);

/// The negative control: masters that start from rounded values give another result.
TEST(RunsOfOneConfiguration, MastersOfAConvertedModelKeepWhatBf16CannotHold) {
  Configuration configuration = configuration_of(Strategy::kZero3);
  const Schedule& schedule = schedules().front();
  const Outcome rounded =
      train_on_threads(subject("OddMlp"), at::kBFloat16, configuration, schedule, 2);
  configuration.precision.parameters = at::kBFloat16;
  const Outcome converted =
      train_on_threads(subject("OddMlp"), at::kFloat, configuration, schedule, 2);
  EXPECT_NE(bit_differences(converted.parameters, rounded.parameters), "");
}

/// Repeating a run must give the same bits; otherwise comparing bits would prove nothing.
TEST(RunsOfOneConfiguration, RepeatTheirOwnBits) {
  const Schedule& schedule = schedules().back();
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3}) {
    const auto run = [&] {
      return train_on_threads(subject("Branches"), at::kFloat, configuration_of(strategy), schedule,
                              3);
    };
    EXPECT_EQ(bit_differences(run(), run()), "");
  }
}

/// The size of buckets decides what is sent together, not what is computed.
TEST(RunsOfOneConfiguration, KeepTheirBitsWithOtherBuckets) {
  Schedule schedule = schedules().back();
  const Configuration configuration = configuration_of(Strategy::kZero1);
  const Outcome small =
      train_on_threads(subject("DeepMlp"), at::kFloat, configuration, schedule, 3);
  schedule.bucket_bytes.reset();
  const Outcome large =
      train_on_threads(subject("DeepMlp"), at::kFloat, configuration, schedule, 3);
  EXPECT_EQ(bit_differences(small, large), "");
}

/// The same for units, from one for the whole model to one per layer.
TEST(RunsOfOneConfiguration, KeepTheirBitsWithOtherUnits) {
  for (const char* model : {"Blocks", "TiedBlocks", "FrozenBlocks", "MixedDtypes"}) {
    Configuration configuration = configuration_of(Strategy::kZero3);
    const Outcome layers =
        train_on_threads(subject(model), at::kFloat, configuration, schedules().back(), 3);
    for (const Configuration::Wrap wrap :
         {Configuration::Wrap::kBlocks, Configuration::Wrap::kWhole}) {
      configuration.wrap = wrap;
      const Outcome got =
          train_on_threads(subject(model), at::kFloat, configuration, schedules().back(), 3);
      EXPECT_EQ(bit_differences(got, layers), "") << model;
    }
  }
}

TEST(RunsOfOneConfiguration, KeepTheirBitsWithAndWithoutPrefetch) {
  Configuration configuration = configuration_of(Strategy::kZero3);
  const auto run = [&configuration](std::optional<bool> prefetch) {
    configuration.prefetch = prefetch;
    return train_on_threads(subject("BranchingBlocks"), at::kFloat, configuration,
                            schedules().front(), 3);
  };
  const Outcome by_default = run(std::nullopt);
  EXPECT_EQ(bit_differences(run(false), by_default), "");
  EXPECT_EQ(bit_differences(run(true), by_default), "");
}

}  // namespace
}  // namespace tessera::internal::testing
