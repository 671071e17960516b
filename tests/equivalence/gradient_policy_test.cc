#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/models.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/training.h"

// Division and clipping of gradients: equal bits under every configuration, and the same result as
// torch::nn::utils in one process.

namespace tessera::internal::testing {
namespace {

constexpr double kLargest = std::numeric_limits<double>::infinity();

struct Policy {
  std::string name;
  std::function<void(Options&)> set;
};

std::ostream& operator<<(std::ostream& stream, const Policy& policy) {
  return stream << policy.name;
}

Policy by_norm(const std::string& name, double p, double max_norm) {
  return {name, [=](Options& options) {
            options.grad_norm_type = p;
            options.max_grad_norm = max_norm;
          }};
}

Policy by_group(const std::string& name, double p, const std::map<std::string, double>& max_norms) {
  return {name, [=](Options& options) {
            options.grad_norm_type = p;
            options.max_grad_norm_by_group = max_norms;
          }};
}

const std::vector<Policy>& policies() {
  static const std::vector<Policy> all = {
      by_norm("L1", 1.0, 0.2),
      by_norm("L2", 2.0, 0.03),
      by_norm("L3", 3.0, 0.02),
      by_norm("Half", 0.5, 5.0),
      by_norm("Largest", kLargest, 0.01),
      by_group("Groups", 2.0, {{"biases", 0.01}}),
      by_group("GroupsL1", 1.0, {{"defaults", 0.1}, {"biases", 0.02}}),
      {"Value", [](Options& options) { options.max_grad_value = 0.003; }},
      {"ValueAndNorm",
       [](Options& options) {
         options.max_grad_value = 0.003;
         options.max_grad_norm = 0.01;
       }},
      {"Divided", [](Options& options) { options.gradient_divide_factor = 1.7; }},
      {"Scaled",
       [](Options& options) {
         options.loss_scale = LossScale{.initial = 1024.0};
         options.max_grad_value = 0.003;
         options.grad_norm_type = 1.0;
         options.max_grad_norm = 0.1;
       }},
      {"Everything",
       [](Options& options) {
         options.loss_scale = LossScale{.initial = 1000.0};  // not a power of two
         options.max_grad_value = 0.004;
         options.grad_norm_type = 3.0;
         options.max_grad_norm_by_group = {{"defaults", 0.004}, {"biases", 0.001}};
         options.gradient_divide_factor = 1.3;
       }},
  };
  return all;
}

const Schedule& accumulating() {
  static const Schedule schedule{.name = "Twice", .micro_steps = 2, .bucket_bytes = 1024};
  return schedule;
}

Outcome train_under(const Policy& policy, const std::string& model,
                    const Configuration& configuration, int world,
                    at::ScalarType dtype = at::kFloat) {
  return train_on_threads(subject(model), dtype, configuration, accumulating(), world,
                          {.adjust = policy.set});
}

/// One process with torch's own functions.
Outcome torch_loop(const Policy& policy, const Subject& subject, int size) {
  Options options;
  policy.set(options);
  const Schedule& schedule = accumulating();
  const std::shared_ptr<Net> net = prepare(subject.make(), at::kDouble, /*seed=*/42);
  const OptimizerPlan plan = make_plan(*net);
  torch::optim::AdamW optimizer = plain_optimizer(*net, plan);
  const std::vector<at::Tensor> parameters = distinct_parameters(*net);
  const double divisor = options.gradient_divide_factor.value_or(size);
  Outcome outcome;
  for (int step = 0; step < schedule.steps; ++step) {
    optimizer.zero_grad();
    for (int micro = 0; micro < schedule.micro_steps; ++micro) {
      for (int rank = 0; rank < size; ++rank) {
        const Moment moment{.step = step, .rank = rank};
        const Batch batch = batch_of(subject, at::kDouble, schedule, moment, micro);
        (loss_of(*net, batch, moment, schedule) / divisor).backward();
      }
    }
    if (std::isfinite(options.max_grad_value)) {
      torch::nn::utils::clip_grad_value_(parameters, options.max_grad_value);
    }
    outcome.grad_norms.push_back(torch::nn::utils::clip_grad_norm_(
        parameters, options.max_grad_norm, options.grad_norm_type));
    for (const auto& [name, max_norm] : options.max_grad_norm_by_group) {
      size_t group = 0;  // the default group is the last one of plain_optimizer()
      while (group < plan.groups.size() && plan.groups[group].name != name) ++group;
      torch::nn::utils::clip_grad_norm_(optimizer.param_groups()[group].params(), max_norm,
                                        options.grad_norm_type);
    }
    optimizer.step();
  }
  outcome.parameters = copy_parameters(*net);
  return outcome;
}

std::string differences_to_plain(const Policy& policy, const std::string& model,
                                 const Configuration& configuration, int world,
                                 const Outcome& expected) {
  const Outcome got = train_under(policy, model, configuration, world, at::kDouble);
  std::string text = differences(got.parameters, expected.parameters, subject(model).tolerance);
  for (size_t step = 0; step < expected.grad_norms.size(); ++step) {
    const double right = expected.grad_norms[step];
    if (std::abs(got.grad_norms.at(step) - right) <= 1e-12 * right) continue;
    text += "norm of step " + std::to_string(step) + ";";
  }
  return text;
}

class GradientPolicy : public ::testing::TestWithParam<int> {
 protected:
  int world() const { return GetParam(); }
};

TEST_P(GradientPolicy, HasTheBitsOfDdpUnderEveryConfiguration) {
  const std::vector<std::string> models = {"OddMlp", "TiedMlp", "UnusedEverywhere", "Conv"};
  const std::vector<Configuration> configurations = spanning_configurations(world());
  for (size_t i = 0; i < policies().size(); ++i) {
    const std::string& model = models[i % models.size()];
    const Outcome expected =
        train_under(policies()[i], model, configuration_of(Strategy::kDdp), world());
    for (const Configuration& configuration : configurations) {
      if (!configuration.keeps_bits() || configuration.name == "ddp") continue;
      EXPECT_EQ(
          bit_differences(train_under(policies()[i], model, configuration, world()), expected), "")
          << configuration << " " << model << " " << policies()[i];
    }
  }
}

TEST_P(GradientPolicy, HasTheBitsOfDdpWithParametersIn16Bits) {
  Configuration ddp = configuration_of(Strategy::kDdp);
  ddp.precision.parameters = at::kBFloat16;
  for (const Policy& policy : policies()) {
    const Outcome expected = train_under(policy, "OddMlp", ddp, world());
    for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
      Configuration configuration = configuration_of(strategy);
      configuration.precision = ddp.precision;
      EXPECT_EQ(bit_differences(train_under(policy, "OddMlp", configuration, world()), expected),
                "")
          << configuration << " " << policy;
    }
  }
}

TEST_P(GradientPolicy, DoesWhatTorchsFunctionsDo) {
  std::vector<Configuration> configurations = {configuration_of(Strategy::kDdp),
                                               configuration_of(Strategy::kZero3)};
  if (world() == 4) configurations.push_back(hybrid(1, 2, 4));  // stores partial sums
  for (const Policy& policy : policies()) {
    for (const std::string model : {"OddMlp", "TiedMlp"}) {
      const Outcome expected = torch_loop(policy, subject(model), world());
      for (const Configuration& configuration : configurations) {
        EXPECT_EQ(differences_to_plain(policy, model, configuration, world(), expected), "")
            << configuration << " " << model << " " << policy;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, GradientPolicy, ::testing::ValuesIn(spanning_worlds()));

/// If a policy changed nothing, its test would prove nothing.
TEST(GradientPolicyNegativeControl, EveryPolicyChangesWhatIsTrained) {
  const Policy none{"None", [](Options&) {}};
  const Configuration zero2 = configuration_of(Strategy::kZero2);
  const Outcome unclipped = train_under(none, "OddMlp", zero2, 2);
  EXPECT_EQ(bit_differences(train_under(none, "OddMlp", zero2, 2), unclipped), "");
  std::vector<Outcome> outcomes = {unclipped};
  for (const Policy& policy : policies()) {
    outcomes.push_back(train_under(policy, "OddMlp", zero2, 2));
    for (size_t other = 0; other + 1 < outcomes.size(); ++other) {
      EXPECT_NE(bit_differences(outcomes.back().parameters, outcomes[other].parameters), "")
          << policy << " and " << other;
    }
  }
}

TEST(GradientPolicyNegativeControl, AnotherPolicyInThePlainLoopIsNoticed) {
  const Configuration zero3 = configuration_of(Strategy::kZero3);
  const Outcome l3 = torch_loop(policies()[2], subject("OddMlp"), 2);
  EXPECT_EQ(differences_to_plain(policies()[2], "OddMlp", zero3, 2, l3), "");
  const Policy nearly = by_norm("L3.0001", 3.0001, 0.02);
  EXPECT_NE(differences_to_plain(nearly, "OddMlp", zero3, 2, l3), "");
  const Policy reversed = {"LargerValue", [](Options& options) {
                             options.max_grad_value = 0.0031;
                             options.max_grad_norm = 0.01;
                           }};
  const Outcome both = torch_loop(policies()[8], subject("OddMlp"), 2);
  EXPECT_EQ(differences_to_plain(policies()[8], "OddMlp", zero3, 2, both), "");
  EXPECT_NE(differences_to_plain(reversed, "OddMlp", zero3, 2, both), "");
}

TEST(GradientPolicy, AMaxNormThatIsNotReachedKeepsTheBitsOfNoClipping) {
  const Configuration zero1 = configuration_of(Strategy::kZero1);
  const Outcome unclipped = train_under({"None", [](Options&) {}}, "OddMlp", zero1, 3);
  for (const Policy& policy :
       {by_norm("L1", 1.0, 1e9), by_norm("Largest", kLargest, 1e9),
        by_group("Groups", 2.0, {{"defaults", 1e9}, {"biases", 1e9}}),
        Policy{"Value", [](Options& options) { options.max_grad_value = 1e9; }},
        Policy{"Divided", [](Options& options) { options.gradient_divide_factor = 3.0; }}}) {
    EXPECT_EQ(
        bit_differences(train_under(policy, "OddMlp", zero1, 3).parameters, unclipped.parameters),
        "")
        << policy;
  }
}

}  // namespace
}  // namespace tessera::internal::testing
