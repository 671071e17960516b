#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/elementwise.h"
#include "tessera/optim/algorithm/algorithm.h"
#include "tessera/tests/optim/torch_twin.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/own_optimizer.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/torch_elementwise.h"

// What a step finds out about an optimizer's numbers, which may change between steps, and what is
// saved of states before the first update.

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using namespace torch::optim;

/// SGD with momentum, which counts its updates and draws beside them as another thread might.
struct Watched {
  static constexpr const char* kName = "Watched";
  static inline std::atomic<int> updates = 0;
  static inline bool draws = false;
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    ++updates;
    if (draws) std::thread([] { torch::rand({3}); }).join();
    if (options.beta == 0) {
      parameter.add_(gradient, -options.lr);
      return;
    }
    if (!state.mean.defined()) state.mean = torch::zeros_like(parameter);
    state.mean.mul_(options.beta).add_(gradient);
    parameter.add_(state.mean, -options.lr);
  }
};

/// One parameter under an optimizer whose options are edited between steps.
class Edited {
 public:
  explicit Edited(const OptimizerPlan& plan)
      : model_({{"weight", torch::linspace(-1, 1, 6).requires_grad_()}}, plan, 1) {}

  void update() { model_.update({torch::ones({6})}); }
  template <typename Options>
  Options& options() {
    return static_cast<Options&>(model_.optimizer(0).param_groups()[0].options());
  }
  at::Tensor values() const { return model_.table()[0].tensor.detach().clone(); }
  const at::Tensor& state(size_t state) { return model_.optimizer(0).state(0, state); }

 private:
  ShardedModel model_;
};

int updates_of(Edited& edited) {
  const int before = Watched::updates;
  edited.update();
  return Watched::updates - before;
}

TEST(ElementwiseNumbers, AScheduleOfThemRunsNothingElse) {
  Edited edited(elementwise<Own<Watched>>(OwnOptions(0.1)));
  EXPECT_EQ(updates_of(edited), 1);
  for (const double beta : {0.8, 0.7, 0.95}) {
    edited.options<OwnOptions>().beta = beta;
    EXPECT_EQ(updates_of(edited), 1) << beta;
  }
  // Without momentum there may be other states.
  edited.options<OwnOptions>().beta = 0;
  EXPECT_GT(updates_of(edited), 1);
  EXPECT_EQ(updates_of(edited), 1);
}

TEST(ElementwiseNumbers, WhatOthersDrawMeanwhileIsNotDrawnAgain) {
  Edited edited(elementwise<Own<Watched>>(OwnOptions(0.1)));
  edited.options<OwnOptions>().beta = 0;  // which is looked into, as above
  torch::manual_seed(5);
  Watched::draws = true;
  const int drawn = updates_of(edited);
  Watched::draws = false;
  const at::Tensor next = torch::rand({3});
  torch::manual_seed(5);
  for (int i = 0; i < drawn; ++i) torch::rand({3});
  EXPECT_GT(drawn, 1);
  EXPECT_TRUE(have_same_bits(next, torch::rand({3})));
}

TEST(ElementwiseNumbers, OnesThatTheConstructorRefusesAreRefusedBeforeTheUpdate) {
  Edited edited(elementwise<AdamW>(AdamWOptions(0.02)));
  edited.update();
  const at::Tensor before = edited.values();
  edited.options<AdamWOptions>().betas({1.5, 0.9});
  EXPECT_THAT(message_of([&] { edited.update(); }), HasSubstr("Invalid beta parameter"));
  EXPECT_TRUE(have_same_bits(edited.values(), before));
  edited.options<AdamWOptions>().betas({0.5, 0.9});
  edited.update();
  EXPECT_FALSE(have_same_bits(edited.values(), before));
}

std::string refusal_of_plan(const OptimizerPlan& plan) {
  const auto assigned = plan.assign(
      ParameterTable(std::vector<NamedTensor>{{"weight", torch::zeros({6}).requires_grad_()}}));
  return assigned.ok() ? "" : std::string(assigned.status().message());
}

TEST(ElementwiseNumbers, ANanIsNotTakenForAnotherNumber) {
  OptimizerPlan plan =
      elementwise<AdamW>(AdamWOptions(0.02).eps(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_THAT(refusal_of_plan(plan), HasSubstr("eps: got nan"));
  plan.defaults.as<AdamWOptions>().eps(1e-8);
  EXPECT_EQ(refusal_of_plan(plan), "");
  const Algorithm& adamw = plan.algorithm();
  EXPECT_EQ(adamw.conflict(AdamWOptions(0.02)), "");
  EXPECT_NE(adamw.conflict(AdamWOptions(0.02).eps(std::numeric_limits<double>::quiet_NaN())), "");
}

/// With a state under some numbers of one sign only.
struct Threshold {
  static constexpr const char* kName = "Threshold";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    if (options.beta > 0.5) {
      if (!state.mean.defined()) state.mean = torch::zeros_like(parameter);
      state.mean.add_(gradient);
    }
    parameter.add_(gradient, -options.lr);
  }
};

TEST(ElementwiseNumbers, ThoseOfThePlanAreLookedAtThemselves) {
  OptimizerPlan plan = elementwise<Own<Threshold>>(OwnOptions(0.1));
  plan.defaults.as<OwnOptions>().beta = 0.25;
  EXPECT_EQ(refusal_of_plan(plan), "");
  EXPECT_FALSE(plan.algorithm().states[0].is_used_by(*plan.defaults.get()));
  Edited edited(plan);
  edited.update();
  edited.options<OwnOptions>().beta = 0.75;
  EXPECT_THAT(message_of([&] { edited.update(); }),
              HasSubstr("defaults: got options that need the state 'mean'"));
}

TEST(ElementwiseStates, BeginAsTheConstructorMakesThem) {
  const auto options = AdagradOptions(0.1).initial_accumulator_value(0.25);
  Edited fused(options);
  Edited by_torch(elementwise<Adagrad>(options));
  EXPECT_TRUE(have_same_bits(by_torch.state(0), fused.state(0)));
  EXPECT_EQ(by_torch.state(0)[0].item<float>(), 0.25F);
  // Nothing makes them before the first step.
  Edited own(elementwise<Own<Belief>>(OwnOptions()));
  EXPECT_TRUE(at::all(own.state(0) == 0).item<bool>());
}

/// States of which the constructor makes two, one of them unequal.
struct Prepared : Belief {
  static constexpr const char* kName = "Prepared";
  static void make(const at::Tensor& parameter, OwnState& state) {
    state.mean = torch::full_like(parameter, 0.25);
    state.spread = parameter.detach().square();
  }
};

TEST(ElementwiseStates, BeginEachByItself) {
  OwnOptions options;
  options.uses_maxima = true;
  const OptimizerPlan plan = elementwise<Own<Prepared>>(options);
  const std::vector<StateField>& states = plan.algorithm().states;
  ASSERT_EQ(states.size(), 3u);
  EXPECT_EQ(states[0].initial_value(options), 0.25);
  EXPECT_EQ(states[1].initial_value(options), 0.0);
  EXPECT_EQ(states[2].initial_value(options), 0.0);
  Edited own(plan);
  EXPECT_TRUE(at::all(own.state(0).narrow(0, 0, 6) == 0.25).item<bool>());
  EXPECT_TRUE(at::all(own.state(1) == 0).item<bool>());
}

/// SGD in every `period`-th step.
struct Periodic {
  static constexpr const char* kName = "Periodic";
  static constexpr bool kHasPeriod = true;
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    if (state.count % options.period == 0) parameter.add_(gradient, -options.lr);
  }
};

TEST(ElementwiseNumbers, IntegersAreExactOrRefused) {
  constexpr int64_t kEnd = int64_t{1} << 53;
  const auto refusal_of_period = [](int64_t period) {
    OwnOptions options;
    options.period = period;
    return refusal_of_plan(elementwise<Own<Periodic>>(options, ElementwiseProbe::kSkip));
  };
  EXPECT_EQ(refusal_of_period(kEnd - 1), "");
  EXPECT_EQ(refusal_of_period(1 - kEnd), "");
  const std::string range = ", expected -9007199254740991 <= period < 9007199254740992, whole";
  // Rounded to fp64, the second is the first.
  for (const int64_t period : {kEnd, kEnd + 1}) {
    EXPECT_THAT(refusal_of_period(period),
                HasSubstr("[optim] defaults: period: got 9007199254740992" + range));
  }
  EXPECT_THAT(refusal_of_period(-kEnd), HasSubstr("period: got -9007199254740992" + range));

  Edited edited(elementwise<Own<Periodic>>(OwnOptions(), ElementwiseProbe::kSkip));
  edited.options<OwnOptions>().period = kEnd + 1;
  EXPECT_THAT(message_of([&] { edited.update(); }), HasSubstr("period: got 9007199254740992"));
}

TEST(ElementwiseNumbers, WhatIsLoadedIntoAnIntegerFitsIt) {
  const OptimizerPlan plan = elementwise<Own<Periodic>>(OwnOptions());
  const HyperParameterField& period = plan.algorithm().hyper_parameters.back();
  EXPECT_EQ(period.problem(3.0), "");
  EXPECT_THAT(period.problem(2.5), HasSubstr("period: got 2.5, expected "));
  struct Narrow : OptimizerCloneableOptions<Narrow> {
    uint8_t count = 0;
  };
  const OptionNumber<Narrow> count("count", &Narrow::count);
  EXPECT_EQ(count.begin, 0.0);
  EXPECT_EQ(count.end, 256.0);
}

struct WritesRate {
  static constexpr const char* kName = "WritesRate";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState&,
                     OwnOptions& options) {
    parameter.add_(gradient, -options.lr);
    options.lr *= 0.5;
  }
};

TEST(ElementwiseNumbers, AreNotForAStepToChange) {
  EXPECT_THAT(refusal_of_plan(elementwise<Own<WritesRate>>(OwnOptions())),
              HasSubstr("WritesRate: lr: got 0.0025 after a step with 0.01, expected no change"));
}

/// Gives its parameter other memory.
struct SetsData {
  static constexpr const char* kName = "SetsData";
  static void update(at::Tensor& parameter, const at::Tensor& gradient, OwnState&,
                     const OwnOptions& options) {
    parameter.set_data(parameter.detach() - gradient * options.lr);
  }
};

TEST(ElementwiseStates, AParameterMayBeGivenOtherMemory) {
  EXPECT_THAT(differing_plans<Own<SetsData>>(elementwise<Own<SetsData>>(OwnOptions()), OwnOptions(),
                                             at::kFloat, 3, 4),
              ::testing::IsEmpty());
}

/// Begins its momentum anew, by Anew::begin(), where the probe does not see it.
template <typename Anew>
struct Restarts {
  static constexpr const char* kName = "Restarts";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    if (!state.mean.defined()) state.mean = torch::zeros_like(parameter);
    state.mean.mul_(options.beta).add_(gradient);
    parameter.add_(state.mean, -options.lr);
    if (state.count == 4) Anew::begin(state.mean);
  }
};
struct ByDropping {
  static void begin(at::Tensor& state) { state = at::Tensor(); }
};
struct ByFilling {
  static void begin(at::Tensor& state) { state.zero_(); }
};

TEST(ElementwiseStates, AreFilledToBeginAnewAndNotDropped) {
  Edited dropping(elementwise<Own<Restarts<ByDropping>>>(OwnOptions()));
  for (int step = 1; step <= 3; ++step) dropping.update();
  EXPECT_THAT(message_of([&] { dropping.update(); }),
              HasSubstr("Restarts: got no state 'mean' after update 4 of a parameter, expected the "
                        "one that it had before; fill it"));
  using Filling = Own<Restarts<ByFilling>>;
  EXPECT_THAT(
      differing_plans<Filling>(elementwise<Filling>(OwnOptions()), OwnOptions(), at::kFloat, 2, 6),
      ::testing::IsEmpty());
}

}  // namespace
}  // namespace tessera::internal::testing
