#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/eight_bit_options.h"
#include "tessera/elementwise.h"
#include "tessera/lamb_options.h"
#include "tessera/lion_options.h"
#include "tessera/muon_options.h"
#include "tessera/optim/algorithms/algorithms.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/factored.h"
#include "tessera/tests/support/group_without_windows.h"
#include "tessera/tests/support/muon_plan.h"
#include "tessera/tests/support/own_optimizer.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/zero/step/whole_tensor_exchange.h"

// An optimizer sees slices of flat buffers and nothing else of a strategy. So for every strategy:
// however units are split over ranks, values and states have the bits that one rank with all of
// them computes. A configuration only chooses the slices; tests/zero/engine and tests/equivalence
// train a few end to end.

namespace tessera::internal::testing {
namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

struct SlicedOptimizer {
  std::string name;
  OptimizerPlan plan;
};

bool is_vector_of(std::string_view, const at::Tensor& parameter) { return parameter.dim() < 2; }

/// Each optimizer with all its possible states.
const std::vector<SlicedOptimizer>& sliced_optimizers() {
  static const std::vector<SlicedOptimizer> all = {
      {"AdamW", AdamWOptions(0.02).weight_decay(0.1)},
      {"AdamWWithMaxima", AdamWOptions(0.02).amsgrad(true)},
      {"Adam", AdamOptions(0.02).weight_decay(0.1).amsgrad(true)},
      {"SGD", SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01)},
      {"DampenedSGD", SGDOptions(0.05).momentum(0.8).dampening(0.25)},
      {"Lion", LionOptions(1e-3).weight_decay(0.2)},
      {"Adagrad", AdagradOptions(0.1).lr_decay(0.2).initial_accumulator_value(0.5)},
      {"RMSprop", RMSpropOptions(0.02).momentum(0.9).centered(true)},
      {"Muon", muon_and(AdamWOptions(0.02), MuonOptions(0.02))},
      {"MuonInBfloat16", muon_and(SGDOptions(0.02), MuonOptions(0.02).ns_in_bfloat16(true))},
      {"LAMB", LambOptions(0.02).weight_decay(0.1)},
      {"AdamW8bit", AdamW8bitOptions(0.02).weight_decay(0.1)},
      {"Lion8bit", Lion8bitOptions(1e-3)},
      {"Elementwise", elementwise<Own<Belief>>(OwnOptions(0.02))},
      {"NarrowMomentum", elementwise<Own<NarrowMomentum>>(OwnOptions(0.02))},
      {"WholeTensor", whole_tensor<Factored>(FactoredOptions(0.02))},
      {"WholeTensorBesideLamb",
       {whole_tensor<Factored>(FactoredOptions(0.02)),
        {{"vectors", &is_vector_of, LambOptions()}}}},
  };
  return all;
}

/// How a world splits units, and whether its ranks have windows.
struct UnitCut {
  int world;
  Degrees degrees;
  bool has_windows = true;
};

/// The fault to inject, if any.
enum class SliceFault : uint8_t { kNone, kLastRankSkipsAStep };

/// Matrices that straddle slices, vectors, a matrix in another memory order, a scalar, and an empty
/// tensor; drawn from the seed.
std::vector<NamedTensor> drawn_parameters(uint64_t seed, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto draw = [&](int64_t least, int64_t most) {
    return at::randint(least, most + 1, {}, generator, at::kLong).item<int64_t>();
  };
  std::vector<NamedTensor> named;
  const auto add = [&](const std::string& name, at::IntArrayRef sizes, bool is_turned = false) {
    at::Tensor tensor = at::randn(sizes, generator, at::kDouble).to(dtype);
    if (is_turned) tensor = tensor.t();
    named.push_back({name, tensor.requires_grad_(true)});
  };
  add("wide", {draw(3, 20), draw(20, 90)});
  add("bias", {draw(1, 70)});
  add("turned", {draw(2, 30), draw(2, 30)}, /*is_turned=*/true);
  add("scalar", {});
  add("empty", {0, 3});
  add("tall", {draw(40, 90), draw(2, 9)});
  add("conv", {draw(2, 5), 3, 3, 3});
  add("line", {draw(60, 400)});
  add("small", {draw(1, 3), draw(1, 3)});
  return named;
}

/// A gradient like `like`, drawn from `seed`; the same on all ranks.
at::Tensor drawn_gradient(const at::Tensor& like, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(like.sizes(), generator, at::kDouble).to(like.scalar_type());
}

/// One rank of a training by hand: units are split by degrees, and each step updates this rank's
/// slices as CpuStepApplier does.
class SlicedRank {
 public:
  SlicedRank(ProcessGroup& group, const UnitCut& cut, const OptimizerPlan& plan, uint64_t seed,
             at::ScalarType dtype)
      : group_(group),
        table_(drawn_parameters(seed, dtype)),
        units_(table_, memberships(), cut.world),
        slices_(cut.degrees, cut.world, group.rank()) {
    const at::NoGradGuard no_grad;
    std::vector<OptimizerShard> shards;
    for (const PlannedUnit& unit : units_) {
      const Range kept = slices_.optimizer(unit.layout);
      const at::Tensor whole = at::zeros({unit.layout.numel()}, dtype);
      for (size_t i = 0; i < unit.parameters.size(); ++i) {
        const at::Tensor& parameter = table_[unit.parameters[i]].tensor;
        view_like(whole, unit.layout.parameter_range(i), parameter).copy_(parameter);
      }
      values_.push_back(whole.narrow(0, kept.begin, kept.numel).clone());
      shards_.push_back({values_.back(), unit.layout.segments(kept)});
      for (Segment& segment : shards_.back().segments) {
        segment.parameter = unit.parameters[segment.parameter];
        segment.buffer_offset -= kept.begin;
      }
    }
    optimizer_ = make_cpu_optimizer(table_, plan, plan.assign(table_).value(), shards_);
    exchange_ = WholeTensorExchange::make(group, units_, slices_, options_, table_, *optimizer_,
                                          meter_, nullptr);
  }

  /// The scalar is used from step 2 on, the first matrix and the line only in some steps.
  void step(int number, uint64_t seed, SliceFault fault) {
    const at::NoGradGuard no_grad;
    std::vector<uint8_t> used;
    for (const Parameter& parameter : table_) {
      const bool rests = (parameter.name == "scalar" && number < 2) ||
                         (parameter.name == "line" && number % 3 == 1) ||
                         (parameter.name == "wide" && number % 4 == 2);
      used.push_back(rests ? 0 : 1);
    }
    const bool is_skipped = fault == SliceFault::kLastRankSkipsAStep && number == 1 &&
                            group_.rank() == group_.size() - 1;
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      const FlatLayout& layout = units_[unit].layout;
      const Range kept = slices_.optimizer(layout);
      const at::Tensor whole = at::zeros({layout.numel()}, layout.dtype());
      for (size_t i = 0; i < layout.parameters(); ++i) {
        const size_t parameter = units_[unit].parameters[i];
        const at::Tensor& like = table_[parameter].tensor;
        if (used[parameter] == 0) continue;
        view_like(whole, layout.parameter_range(i), like)
            .copy_(drawn_gradient(like, seed + 1000 * static_cast<uint64_t>(number) + parameter));
      }
      const std::vector<uint8_t> none(table_.size(), 0);
      optimizer_->update(unit, whole.narrow(0, kept.begin, kept.numel).clone(),
                         units_[unit].parameters, is_skipped ? none : used, /*gradient_scale=*/0.5);
    }
    if (exchange_ == nullptr) return;
    exchange_->run(used);
    for (const size_t unit : exchange_->awaited_units()) {
      optimizer_->whole_tensors()->apply(unit, used);
    }
  }

  /// Copies the values and states of this rank's slices to their places among all ranks', in memory
  /// order.
  void add_to(std::map<std::string, at::Tensor>& all) const {
    const auto put = [&](const std::string& name, int64_t numel, int64_t begin,
                         const at::Tensor& part) {
      at::Tensor& whole = all[name];
      if (!whole.defined()) whole = at::zeros({numel}, part.options());
      whole.narrow(0, begin, part.numel()).copy_(part);
    };
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      for (const Segment& segment : shards_[unit].segments) {
        const Parameter& of = table_[segment.parameter];
        const int64_t numel = of.tensor.numel();
        put(of.name, numel, segment.parameter_offset,
            values_[unit].narrow(0, segment.buffer_offset, segment.numel));
        for (size_t state = 0; state < optimizer_->states().size(); ++state) {
          const auto& kept = optimizer_->states()[state];
          if (!kept.has(segment.parameter)) continue;
          put(absl::StrCat(of.name, " state ", state), kept.values_of(numel),
              kept.values_of(segment.parameter_offset), optimizer_->state_of(unit, segment, state));
        }
      }
    }
    const WholeTensors* const whole = optimizer_->whole_tensors();
    if (whole == nullptr) return;
    for (const WholeTensors::State& state : whole->states()) {
      if (!state.memory.defined()) continue;
      put(absl::StrCat(table_[state.parameter].name, " whole ", state.form.name),
          state.memory.numel(), 0, state.memory.reshape({-1}));
    }
  }

 private:
  /// Puts every parameter into one of two units.
  std::vector<UnitPlan::Membership> memberships() const {
    std::vector<UnitPlan::Membership> units = {{"even", {}}, {"odd", {}}};
    for (size_t i = 0; i < table_.size(); ++i) units[i % 2].parameters.push_back(i);
    return units;
  }

  ProcessGroup& group_;
  ParameterTable table_;
  UnitPlan units_;
  SliceMap slices_;
  ResolvedOptions options_;
  MemoryMeter meter_;
  std::vector<at::Tensor> values_;
  std::vector<OptimizerShard> shards_;
  std::unique_ptr<CpuOptimizer> optimizer_;
  std::unique_ptr<WholeTensorExchange> exchange_;
};

/// Values and states by name after some steps.
std::map<std::string, at::Tensor> trained_in_slices(const OptimizerPlan& plan, const UnitCut& cut,
                                                    uint64_t seed, at::ScalarType dtype,
                                                    SliceFault fault = SliceFault::kNone) {
  constexpr int kSteps = 5;
  std::mutex mutex;
  std::map<std::string, at::Tensor> all;
  run_ranks(cut.world, [&](std::shared_ptr<ProcessGroup> world) {
    if (!cut.has_windows) world = std::make_shared<GroupWithoutWindows>(std::move(world));
    SlicedRank rank(*world, cut, plan, seed, dtype);
    for (int step = 0; step < kSteps; ++step) rank.step(step, seed, fault);
    const std::lock_guard lock(mutex);
    rank.add_to(all);
  });
  return all;
}

const UnitCut kUncut = {.world = 1, .degrees = {1, 1, 1}};

class OptimizerSlices : public ::testing::TestWithParam<size_t> {};

INSTANTIATE_TEST_SUITE_P(, OptimizerSlices, ::testing::Range(size_t{0}, sliced_optimizers().size()),
                         [](const ::testing::TestParamInfo<size_t>& info) {
                           return sliced_optimizers()[info.param].name;
                         });

TEST_P(OptimizerSlices, GiveTheBitsOfOneRankThatHasAll) {
  const OptimizerPlan& plan = sliced_optimizers()[GetParam()].plan;
  const std::vector<UnitCut> cuts = {{2, {1, 1, 2}},        {3, {3, 3, 3}}, {4, {1, 1, 2}},
                                     {4, {2, 4, 4}},        {5, {1, 5, 5}}, {3, {1, 3, 3}, false},
                                     {4, {1, 2, 2}, false}, {6, {1, 3, 3}}};
  uint64_t seed = 0;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const UnitCut& cut : cuts) {
      ++seed;
      const auto expected = trained_in_slices(plan, kUncut, seed, dtype);
      EXPECT_GT(expected.size(), drawn_parameters(seed, dtype).size() - 1) << "no states";
      EXPECT_EQ(bit_differences(trained_in_slices(plan, cut, seed, dtype), expected), "")
          << cut.world << " ranks, degrees " << to_string(cut.degrees)
          << (cut.has_windows ? "" : ", without windows") << ", " << dtype << ", seed " << seed;
    }
  }
}

/// The comparison notices an update that one rank skips, in values and in states if there are any.
TEST_P(OptimizerSlices, NegativeControlASkippedUpdateIsSeen) {
  const OptimizerPlan& plan = sliced_optimizers()[GetParam()].plan;
  const UnitCut cut{3, {1, 3, 3}};
  EXPECT_NE(
      bit_differences(trained_in_slices(plan, cut, 1, at::kFloat, SliceFault::kLastRankSkipsAStep),
                      trained_in_slices(plan, kUncut, 1, at::kFloat)),
      "");
}

/// A new algorithm needs a line in sliced_optimizers().
TEST(OptimizersInSlices, AreAllAlgorithms) {
  std::set<std::string> covered;
  for (const SlicedOptimizer& kind : sliced_optimizers()) {
    std::vector<const torch::optim::OptimizerOptions*> options = {kind.plan.defaults.get()};
    for (const OptimizerGroup& group : kind.plan.groups) options.push_back(group.options.get());
    for (const torch::optim::OptimizerOptions* of : options) {
      if (const Algorithm* algorithm = algorithm_of(*of)) covered.insert(algorithm->name);
    }
  }
  for (const Algorithm* algorithm : algorithms()) {
    EXPECT_EQ(covered.count(algorithm->name), 1U) << algorithm->name;
  }
}

}  // namespace
}  // namespace tessera::internal::testing
