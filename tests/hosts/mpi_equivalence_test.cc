// The equivalence suite over MPI (the fake): ranks end with the same bits as over shared memory,
// however gradients and parameters are sent.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/eight_bit_options.h"
#include "tessera/lamb_options.h"
#include "tessera/lion_options.h"
#include "tessera/tests/core/comm/mpi/mpi_ranks.h"
#include "tessera/tests/hosts/mpi_reads.h"
#include "tessera/tests/hosts/needs_windows.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/fake_mpi/fake_mpi.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/muon_plan.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

struct MpiCase {
  Configuration configuration;
  int world;
  Subject subject;
  Schedule schedule;
  at::ScalarType dtype = at::kFloat;
};

/// Every row of the table, with models and schedules in turn: two models each on two and four
/// ranks, all on three.
std::vector<MpiCase> mpi_cases() {
  const std::vector<std::string> models = {
      "UnusedEverywhere", "FrozenBlocks",  "MixedDtypes", "CheckpointedBlocks",
      "TiedBlocks",       "TinyAndScalar", "Branches"};
  std::vector<MpiCase> cases;
  size_t turn = 0;
  for (const int world : {2, 3, 4}) {
    for (Configuration configuration : configurations_of_world(world)) {
      for (size_t i = 0; i < (world == 3 ? models.size() : 3); ++i, ++turn) {
        const std::string& model = models[turn % models.size()];
        if (needs_windows(configuration, model, world) && !mpi_reads_one_sided()) continue;
        const bool is_narrow = turn % 3 == 2 && model != "MixedDtypes";
        configuration.precision.parameters.reset();
        if (is_narrow) configuration.precision.parameters = at::kBFloat16;
        cases.push_back({configuration, world, subject(model),
                         schedules()[(turn + turn / schedules().size()) % schedules().size()]});
      }
    }
  }
  return cases;
}

std::string name_of_mpi_case(const ::testing::TestParamInfo<MpiCase>& info) {
  const MpiCase& run = info.param;
  return run.configuration.name + "_World" + std::to_string(run.world) + "_" + run.subject.name +
         "_" + run.schedule.name +
         (run.configuration.precision.parameters.has_value() ? "_Bf16" : "");
}

std::ostream& operator<<(std::ostream& stream, const MpiCase& run) {
  return stream << run.configuration << " at world " << run.world << ", " << run.subject << ", "
                << run.schedule;
}

class MpiEquivalence : public ::testing::TestWithParam<MpiCase> {};

TEST_P(MpiEquivalence, TrainsToTheBitsOfSharedMemory) {
  const MpiCase& run = GetParam();
  const int64_t before = fake_data_bytes();
  const Outcome got = train_on_threads(run.subject, run.dtype, run.configuration, run.schedule,
                                       run.world, {}, over_mpi(run.world));
  EXPECT_GT(fake_data_bytes(), before) << "nothing went over MPI";
  EXPECT_EQ(bit_differences(got, expected_outcome(run.subject, run.dtype, run.configuration,
                                                  run.schedule, run.world)),
            "");
}

INSTANTIATE_TEST_SUITE_P(, MpiEquivalence, ::testing::ValuesIn(mpi_cases()), name_of_mpi_case);

/// Rank 0 receives zeros instead of sums of gradients.
class LosingGroup final : public ForwardingGroup {
 public:
  explicit LosingGroup(std::shared_ptr<ProcessGroup> inner) : ForwardingGroup(std::move(inner)) {}

  std::shared_ptr<Work> run(const Collective& collective) override {
    const bool reduces = collective.op == Op::kAllReduce || collective.op == Op::kReduceScatter;
    std::shared_ptr<Work> work = inner_->run(collective);
    if (rank() == 0 && reduces && collective.output.scalar_type() == at::kFloat) {
      work->wait();
      collective.output.zero_();
    }
    return work;
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<LosingGroup>(std::move(inner));
  }
};

/// The comparison can fail: missing sums change the result.
TEST(MpiEquivalenceControl, LostSumsAreSeen) {
  const Schedule& schedule = schedules().front();
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero2, Strategy::kZero3}) {
    const Configuration configuration = configuration_of(strategy);
    std::string found;
    try {
      const Outcome got =
          train_on_threads(subject("OddMlp"), at::kFloat, configuration, schedule, 3, {},
                           [over = over_mpi(3)](std::shared_ptr<ProcessGroup> world) {
                             return std::make_shared<LosingGroup>(over(std::move(world)));
                           });
      found = bit_differences(
          got, outcome_of_ddp(subject("OddMlp"), at::kFloat, configuration.precision, schedule, 3));
    } catch (const std::exception& error) {
      found = error.what();  // the ranks differ
    }
    EXPECT_NE(found, "") << configuration;
  }
}

bool is_odd_height(std::string_view, const at::Tensor& parameter) {
  return parameter.dim() > 0 && parameter.size(0) % 2 == 1;
}

struct PlanOverMpi {
  const char* name;
  OptimizerPlan plan;
};

std::vector<PlanOverMpi> plans_over_mpi() {
  const torch::optim::AdamWOptions adamw = torch::optim::AdamWOptions(0.02).eps(1e-6);
  return {{"Muon", muon_and(adamw, MuonOptions(0.02))},
          {"Lamb", LambOptions(0.02)},
          {"EightBits", {AdamW8bitOptions(0.02), {{"odd", &is_odd_height, Lion8bitOptions(0.01)}}}},
          {"MuonAndLamb", muon_and(LambOptions(0.02), MuonOptions(0.02))}};
}

class MpiOptimizers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, MpiOptimizers, ::testing::Values(2, 3, 4));

TEST_P(MpiOptimizers, TrainToTheBitsOfSharedMemory) {
  size_t turn = 0;
  for (const PlanOverMpi& optimizer : plans_over_mpi()) {
    const TrainOptions options = {.plan = [&](const torch::nn::Module&) { return optimizer.plan; }};
    for (const char* model : {"OddMlp", "UnusedEverywhere"}) {
      const Schedule& schedule = schedules()[turn++ % schedules().size()];
      const Outcome expected =
          train_on_threads(subject(model), at::kFloat, configuration_of(Strategy::kDdp), schedule,
                           GetParam(), options);
      for (const Configuration& configuration : configurations_of_world(GetParam())) {
        if (!configuration.keeps_bits()) continue;
        const bool has_windows = !needs_windows(configuration, model, GetParam());
        if (!has_windows && !mpi_reads_one_sided()) continue;
        if (++turn % 2 == 0 && !configuration.splits_parameters()) continue;
        const Outcome got = train_on_threads(subject(model), at::kFloat, configuration, schedule,
                                             GetParam(), options, over_mpi(GetParam()));
        EXPECT_EQ(bit_differences(got, expected), "")
            << optimizer.name << " " << configuration << " " << model << " " << schedule;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::internal::testing
