#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/factored.h"
#include "tessera/tests/support/group_without_windows.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/training.h"
#include "tessera/torch_elementwise.h"
#include "tessera/whole_tensor.h"

// An optimizer that whole_tensor() runs over whole parameters at their owners has the bits of the
// same class in a plain loop, under every configuration.

namespace tessera::internal::testing {
namespace {

/// Matrices of odd sizes, tied, frozen, unused by some or all ranks, of two dtypes, smaller than
/// the world, without elements, four-dimensional in either memory format.
const std::vector<std::string> kWholeModels = {"OddMlp",           "TiedMlp",     "FrozenLayers",
                                               "UnusedEverywhere", "Branches",    "TinyAndScalar",
                                               "EmptyParameter",   "MixedDtypes", "Conv",
                                               "ChannelsLast"};

bool is_matrix_or_more(std::string_view, const at::Tensor& parameter) {
  return parameter.dim() >= 2;
}

/// Factored for all parameters, or for matrices with LibTorch's own AdamW for vectors.
OptimizerPlan factored_plan(bool is_mixed, double rate) {
  const AlgorithmOptions factored = whole_tensor<Factored>(FactoredOptions(rate));
  if (!is_mixed) return factored;
  return {elementwise<torch::optim::AdamW>(torch::optim::AdamWOptions(0.02)),
          {{"matrices", &is_matrix_or_more, factored}}};
}

/// Runs of one plan share what its trial found.
TrainOptions by_factored(bool is_mixed) {
  static const OptimizerPlan kAlone = factored_plan(/*is_mixed=*/false, 0.02);
  static const OptimizerPlan kMixed = factored_plan(/*is_mixed=*/true, 0.02);
  const OptimizerPlan plan = is_mixed ? kMixed : kAlone;
  return {.plan = [plan](const torch::nn::Module&) { return plan; }};
}

/// Like engines: adds ranks in order, divides once, and adds micro-steps.
class MeanGradients {
 public:
  explicit MeanGradients(std::vector<at::Tensor> parameters)
      : parameters_(std::move(parameters)), sums_(parameters_.size()), all_(parameters_.size()) {}

  /// The gradients of one rank in one micro-step.
  void add(const at::Tensor& loss) {
    for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    loss.backward();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& gradient = parameters_[i].grad();
      if (!gradient.defined()) continue;
      sums_[i] = sums_[i].defined() ? sums_[i] + gradient : gradient.clone();
    }
  }
  void end_micro_step(int ranks) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!sums_[i].defined()) continue;
      const at::Tensor mean = sums_[i] / ranks;
      all_[i] = all_[i].defined() ? all_[i] + mean : mean;
      sums_[i].reset();
    }
  }
  void show() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].mutable_grad() = all_[i];
      all_[i].reset();
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> sums_;
  std::vector<at::Tensor> all_;
};

/// As many threads as a test's rank has: the bits of a convolution depend on them.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// One process on the batches of all ranks.
std::map<std::string, at::Tensor> plain_factored_loop(bool is_mixed, const Subject& subject,
                                                      const Schedule& schedule, int size) {
  const OneThread one_thread;
  const std::shared_ptr<Net> net = prepare(subject.make(), at::kFloat, kModelSeed);
  std::vector<at::Tensor> all, whole, others;
  for (const at::Tensor& parameter : distinct_parameters(*net)) {
    if (parameter.numel() == 0) continue;
    all.push_back(parameter);
    (!is_mixed || parameter.dim() >= 2 ? whole : others).push_back(parameter);
  }
  Factored factored(whole, FactoredOptions(0.02));
  torch::optim::AdamW adamw(others, torch::optim::AdamWOptions(0.02));
  MeanGradients gradients(all);
  for (int step = 0; step < schedule.steps; ++step) {
    for (int micro = 0; micro < schedule.micro_steps; ++micro) {
      for (int rank = 0; rank < size; ++rank) {
        const Moment moment{.step = step, .rank = rank};
        const Batch batch = batch_of(subject, at::kFloat, schedule, moment, micro);
        gradients.add(loss_of(*net, batch, moment, schedule));
      }
      gradients.end_micro_step(size);
    }
    gradients.show();
    factored.step();
    if (!others.empty()) adamw.step();
  }
  return copy_parameters(*net);
}

Outcome train_by_factored(bool is_mixed, const std::string& model,
                          const Configuration& configuration, const Schedule& schedule, int world,
                          const Decorate& decorate = {}) {
  return train_on_threads(subject(model), at::kFloat, configuration, schedule, world,
                          by_factored(is_mixed), decorate);
}

class WholeTensorEquivalence : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(World, WholeTensorEquivalence, ::testing::ValuesIn(spanning_worlds()));

/// With one micro-step, and with three that are each reduced.
TEST_P(WholeTensorEquivalence, HasTheBitsOfAPlainLoopUnderEveryConfiguration) {
  size_t turn = 0;
  for (const std::string& model : kWholeModels) {
    const bool is_mixed = turn % 2 == 1;
    Schedule schedule = schedule_called("Once");
    schedule.steps = 3;
    if (turn++ % 3 == 1) schedule.micro_steps = 3;
    const auto expected = plain_factored_loop(is_mixed, subject(model), schedule, world());
    const std::vector<Configuration> configurations = spanning_configurations(world());
    for (size_t i = 0; i < configurations.size(); ++i) {
      // Each model takes the named configurations and a third of the others.
      if (!configurations[i].keeps_bits() || (i >= 4 && i % 3 != turn % 3)) continue;
      const Outcome got = train_by_factored(is_mixed, model, configurations[i], schedule, world());
      EXPECT_EQ(bit_differences(got.parameters, expected), "")
          << configurations[i] << " " << model << " " << schedule;
    }
  }
}

/// With clipping, and with 16-bit parameters over masters, also in memory with gaps: ddp's bits.
TEST_P(WholeTensorEquivalence, HasTheBitsOfDdpOverMastersAndUnderClipping) {
  const Schedule& schedule = schedule_called("ThriceClipped");
  const auto narrow = [](Configuration configuration) {
    configuration.precision.parameters = at::kBFloat16;
    return configuration;
  };
  for (const char* const model : {"OddMlp", "Gapped"}) {
    const Outcome expected =
        train_by_factored(true, model, narrow(configuration_of(Strategy::kDdp)), schedule, world());
    for (const Configuration& configuration : spanning_configurations(world())) {
      if (!configuration.keeps_bits()) continue;
      const Outcome got = train_by_factored(true, model, narrow(configuration), schedule, world());
      EXPECT_EQ(bit_differences(got, expected), "") << configuration << " " << model;
    }
  }
}

/// Gradients and values are then all-gathered.
TEST_P(WholeTensorEquivalence, RanksThatCannotReadEachOthersMemoryTrainTheSame) {
  const Schedule& schedule = schedule_called("Once");
  const auto without_windows = [](std::shared_ptr<ProcessGroup> group) {
    return std::make_shared<GroupWithoutWindows>(std::move(group));
  };
  for (const char* const model : {"OddMlp", "UnusedEverywhere"}) {
    const auto expected = plain_factored_loop(false, subject(model), schedule, world());
    for (const Configuration& configuration : apart_configurations()) {
      const Outcome got =
          train_by_factored(false, model, configuration, schedule, world(), without_windows);
      EXPECT_EQ(bit_differences(got.parameters, expected), "") << configuration << " " << model;
    }
  }
}

TEST(WholeTensorEquivalenceNegativeControl, OtherOptionsTrainOtherwise) {
  const Schedule& once = schedule_called("Once");
  const Configuration zero2 = configuration_of(Strategy::kZero2);
  const Outcome right = train_by_factored(false, "OddMlp", zero2, once, 2);
  EXPECT_EQ(
      bit_differences(right.parameters, plain_factored_loop(false, subject("OddMlp"), once, 2)),
      "");
  const Outcome other = train_on_threads(
      subject("OddMlp"), at::kFloat, zero2, once, 2,
      {.plan = [](const torch::nn::Module&) { return factored_plan(false, 0.0200001); }});
  EXPECT_NE(bit_differences(other, right), "");
  EXPECT_NE(
      bit_differences(right.parameters, plain_factored_loop(true, subject("OddMlp"), once, 2)), "");
}

}  // namespace
}  // namespace tessera::internal::testing
