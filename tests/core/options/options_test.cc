#include "tessera/options.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/options/resolved_options.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSubsetOf;

constexpr int kRanks = 4;

WorldTraits on_cpu() { return {.size = kRanks}; }
WorldTraits on_gpu() {
  return {.size = kRanks,
          .device = at::Device(at::kCUDA, 0),
          .can = {.completes_on_host = false, .one_sided_reads = true}};
}
WorldTraits alone_on_gpu() {
  WorldTraits world = on_gpu();
  world.size = 1;
  return world;
}

std::string refusal(const Options& options, const WorldTraits& world) {
  return std::string(resolve(options, nullptr, world).status().message());
}

// --- One rule for all ---

/// The effect of an option that is set under a strategy.
enum class Rule : uint8_t {
  kActs,
  kRefused,  // the strategy would ignore it
  kKept,     // a bound that ranks which share parameters keep anyway; it acts if they do not share
};
constexpr Rule A = Rule::kActs;
constexpr Rule R = Rule::kRefused;
constexpr Rule K = Rule::kKept;

/// A column of the table.
struct Column {
  const char* name;
  Strategy strategy;
  std::optional<Degrees> degrees;
};
const std::array<Column, 7> kColumns = {{{"ddp", Strategy::kDdp, {}},
                                         {"zero1", Strategy::kZero1, {}},
                                         {"zero2", Strategy::kZero2, {}},
                                         {"zero3", Strategy::kZero3, {}},
                                         {"1,2,2", Strategy::kHybrid, Degrees{1, 2, 2}},
                                         {"4,4,4", Strategy::kHybrid, Degrees{4, 4, 4}},
                                         {"2,4,4", Strategy::kHybrid, Degrees{2, 4, 4}}}};

struct FieldCase {
  std::string option;
  std::function<void(Options&)> set;
  std::array<Rule, 7> rules;
  std::function<WorldTraits()> world = &on_cpu;
};

const std::vector<FieldCase>& cases() {
  static const std::vector<FieldCase> all = {
      {"wrap",
       [](Options& o) {
         o.wrap = {"nothing", [](const torch::nn::Module&) {
                     return std::vector<std::vector<std::string>>{};
                   }};
       },
       {R, R, R, A, R, A, A}},
      {"reshard_after_forward",
       [](Options& o) { o.reshard_after_forward = 1; },
       {R, R, R, K, R, K, A}},
      {"ignores",
       [](Options& o) { o.ignores = [](std::string_view) { return false; }; },
       {A, A, A, A, A, A, A}},
      {"max_grad_norm", [](Options& o) { o.max_grad_norm = 1.0; }, {A, A, A, A, A, A, A}},
      {"grad_norm_type", [](Options& o) { o.grad_norm_type = 1.0; }, {A, A, A, A, A, A, A}},
      {"max_grad_norm_by_group",
       [](Options& o) {
         o.max_grad_norm_by_group = {{"defaults", 1.0}};
       },
       {A, A, A, A, A, A, A}},
      {"max_grad_value", [](Options& o) { o.max_grad_value = 1.0; }, {A, A, A, A, A, A, A}},
      {"gradient_divide_factor",
       [](Options& o) { o.gradient_divide_factor = 3.0; },
       {A, A, A, A, A, A, A}},
      {"reproducible",
       [](Options& o) { o.reproducible = Reproducible::kAnyWorldSize; },
       {A, A, A, A, A, A, A}},
      {"precision",
       [](Options& o) { o.precision.parameters = at::kBFloat16; },
       {A, A, A, A, A, A, A}},
      {"loss_scale", [](Options& o) { o.loss_scale.emplace(); }, {A, A, A, A, A, A, A}},
      {"on_non_finite",
       [](Options& o) { o.on_non_finite = NonFinite::kSkip; },
       {A, A, A, A, A, A, A}},
      {"ask_non_finite",
       [](Options& o) { o.ask_non_finite = [](const auto&) { return NonFinite::kSkip; }; },
       {A, A, A, A, A, A, A}},
      {"average",
       [](Options& o) { o.average = WeightAverage{.decay = 0.9}; },
       {A, A, A, A, A, A, A}},
      {"buffers", [](Options& o) { o.buffers = BufferSync::kMean; }, {A, A, A, A, A, A, A}},
      {"ignores_buffers",
       [](Options& o) { o.ignores_buffers = [](std::string_view) { return false; }; },
       {A, A, A, A, A, A, A}},
      {"requires_sync_batch_norm",
       [](Options& o) { o.requires_sync_batch_norm = true; },
       {A, A, A, A, A, A, A}},
      {"share_parameters", [](Options& o) { o.share_parameters = false; }, {R, A, A, A, A, A, R}},
      {"optimizer_in_backward",
       [](Options& o) { o.optimizer_in_backward = true; },
       {R, R, A, A, R, A, A}},
      {"bucket_bytes", [](Options& o) { o.bucket_bytes = {1024}; }, {A, A, A, R, A, R, R}},
      {"reorder_reductions",
       [](Options& o) { o.reorder_reductions = false; },
       {A, A, A, A, A, A, A}},
      {"units_in_reduction", [](Options& o) { o.units_in_reduction = 3; }, {A, R, A, A, A, A, A}},
      {"prefetch", [](Options& o) { o.prefetch = true; }, {R, R, R, K, R, K, A}},
      {"keep_freed_memory", [](Options& o) { o.keep_freed_memory = false; }, {A, A, A, A, A, A, A}},
      {"offload",
       [](Options& o) { o.offload = Offload::kParameters; },
       {R, R, R, A, R, A, R},
       &on_gpu},
      {"asynchronous_step",
       [](Options& o) { o.asynchronous_step = true; },
       {A, A, A, A, A, A, A},
       &on_gpu},
      {"cuda_graphs",
       [](Options& o) { o.cuda_graphs = true; },
       {A, A, A, A, R, R, R},
       &alone_on_gpu},
      {"poison_freed", [](Options& o) { o.poison_freed = true; }, {A, A, A, A, A, A, A}},
      {"free_eagerly", [](Options& o) { o.free_eagerly = true; }, {R, R, R, A, R, A, A}},
      {"fixed_unsharded_buffers",
       [](Options& o) { o.fixed_unsharded_buffers = true; },
       {R, R, R, K, R, K, A}},
      {"trace", [](Options& o) { o.trace = true; }, {A, A, A, A, A, A, A}},
  };
  return all;
}

/// Returns how setting `option` behaves under `column`; "" if as `expected`.
std::string difference(const FieldCase& option, const Column& column, Rule expected) {
  Options options{.strategy = column.strategy, .degrees = column.degrees};
  const Options before = options;
  option.set(options);
  const WorldTraits world = option.world();
  const std::string got = refusal(options, world);
  const std::string where = absl::StrCat(option.option, " under ", column.name, ": ");
  if (expected == Rule::kRefused) {
    const bool names_it = got.starts_with(absl::StrCat("[options] ", option.option, ": "));
    return names_it ? "" : absl::StrCat(where, "expected a refusal by name, got '", got, "'");
  }
  if (!got.empty()) return absl::StrCat(where, "expected none, got '", got, "'");
  const bool is_shared = can_share_parameters(placement(options, world.size));
  if (expected == Rule::kKept && !is_shared) return absl::StrCat(where, "nothing is shared");
  if (option.option.starts_with("ignores")) return "";
  return lines(options) != lines(before) ? "" : absl::StrCat(where, "was not set");
}

TEST(Options, ActsOrIsRefusedOrIsABoundThatSharingKeeps) {
  for (const FieldCase& option : cases()) {
    for (size_t i = 0; i < kColumns.size(); ++i) {
      if (option.option == "cuda_graphs" && kColumns[i].degrees.has_value()) {
        continue;  // a hybrid needs ranks, a graph none: refused for its degrees
      }
      EXPECT_EQ(difference(option, kColumns[i], option.rules[i]), "");
    }
  }
}

// Negative control: each wrong cell is noticed, and so is an option without effect.
TEST(Options, AWrongCellOfTheTableIsNoticed) {
  for (const FieldCase& option : cases()) {
    for (size_t i = 0; i < kColumns.size(); ++i) {
      if (option.option == "cuda_graphs" && kColumns[i].degrees.has_value()) continue;
      const Rule wrong = option.rules[i] == Rule::kRefused ? Rule::kActs : Rule::kRefused;
      EXPECT_NE(difference(option, kColumns[i], wrong), "") << option.option;
    }
  }
  const FieldCase nothing{"trace", [](Options&) {}, {}};
  EXPECT_THAT(difference(nothing, kColumns[0], Rule::kActs), HasSubstr("was not set"));
  EXPECT_THAT(difference(cases()[1], kColumns[6], Rule::kKept), HasSubstr("nothing is shared"));
}

TEST(Options, EveryFieldIsInTheTable) {
  // If a field is added or removed, this does not compile.
  const Options options;
  [[maybe_unused]] const auto& [strategy, degrees, wrap, reshard_after_forward, ignores,
                                max_grad_norm, grad_norm_type, max_grad_norm_by_group,
                                max_grad_value, gradient_divide_factor, reproducible, precision,
                                loss_scale, on_non_finite, ask_non_finite, average, buffers,
                                ignores_buffers, requires_sync_batch_norm, share_parameters,
                                optimizer_in_backward, bucket_bytes, reorder_reductions,
                                units_in_reduction, prefetch, keep_freed_memory, offload,
                                asynchronous_step, cuda_graphs, poison_freed, free_eagerly,
                                fixed_unsharded_buffers, trace] = options;
  constexpr size_t kFields = 33;
  std::set<std::string> tested = {"strategy", "degrees"};  // the columns
  for (const FieldCase& option : cases()) tested.insert(option.option);
  EXPECT_EQ(tested.size(), kFields);
  std::set<std::string> known = {"ignores", "ignores_buffers"};
  for (const std::string& line : lines(options)) known.insert(line.substr(0, line.find(' ')));
  EXPECT_EQ(tested, known);
}

// --- One list ---

TEST(Options, ListsEveryRefusalInOneOrder) {
  Options options{.strategy = Strategy::kZero3,
                  .reshard_after_forward = 3,
                  .max_grad_norm = -1.0,
                  .loss_scale = LossScale{.backoff = 2.0},
                  .optimizer_in_backward = true,
                  .bucket_bytes = {1},
                  .units_in_reduction = 0,
                  .offload = Offload::kOptimizer,
                  .asynchronous_step = true};
  const std::vector<std::string> all = absl::StrSplit(refusal(options, on_cpu()), '\n');
  EXPECT_THAT(
      all,
      ElementsAre(HasSubstr("[options] reshard_after_forward: got 3, expected a divisor"),
                  HasSubstr("[options] max_grad_norm: got -1"),
                  HasSubstr("[options] loss_scale.backoff: got 2"),
                  HasSubstr("[options] bucket_bytes: is set, but strategy zero3"),
                  HasSubstr("[options] bucket_bytes: got 1; allowed"),
                  HasSubstr("[options] units_in_reduction: got 0; allowed 1 to 1024"),
                  HasSubstr("[options] offload: is set, but parameters lie on the CPU"),
                  HasSubstr("[options] asynchronous_step: is set, but parameters lie on the CPU"),
                  HasSubstr("[options] optimizer_in_backward: is set beside offload"),
                  HasSubstr("[options] optimizer_in_backward: is set beside max_grad_norm"),
                  HasSubstr("[options] optimizer_in_backward: is set beside loss_scale"),
                  HasSubstr("[options] asynchronous_step: is set beside offload")));
  const std::vector<std::string> early =
      absl::StrSplit(std::string(validate(options).message()), '\n');
  EXPECT_THAT(early, IsSubsetOf(all)) << "what is known without a world is the same list";
  EXPECT_EQ(early.size(), 9u);
}

TEST(Options, WhatNoModelCouldHaveIsRefusedWithoutOne) {
  const auto message = [](const Options& options) {
    return std::string(validate(options).message());
  };
  EXPECT_THAT(message({.precision = {.parameters = at::kInt}}),
              HasSubstr("[options] precision.parameters: got Int"));
  EXPECT_THAT(message({.precision = {.master = at::kBFloat16}}),
              HasSubstr("[options] precision.master: got BFloat16"));
  EXPECT_EQ(message({.precision = {.parameters = at::kBFloat16}}), "") << "the control";
  EXPECT_THAT(message({.strategy = static_cast<Strategy>(77)}),
              HasSubstr("[options] strategy: got 77, expected 0 to 4"));
  EXPECT_THAT(message({.buffers = static_cast<BufferSync>(3)}),
              HasSubstr("buffers: got 3, expected 0 to 2"));
  EXPECT_THAT(message({.offload = static_cast<Offload>(9)}), HasSubstr("offload: got 9"));
  EXPECT_THAT(message({.on_non_finite = static_cast<NonFinite>(7)}),
              HasSubstr("on_non_finite: got 7"));
}

TEST(Options, AnAverageOfWeightsHasRanges) {
  const auto message = [](const WeightAverage& average) {
    const Options options{.average = average};
    return std::string(validate(options).message());
  };
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({.decay = 0.0, .start_step = 5, .every = 10}), "") << "the control";
  for (const double decay : {-0.1, 1.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(message({.decay = decay}), HasSubstr("[options] average.decay: got "));
  }
  EXPECT_EQ(
      message({.start_step = 0}),
      "[options] average.start_step: got 0; allowed 1 or more; leave it out to average from the "
      "first step on");
  EXPECT_EQ(
      message({.every = -3}),
      "[options] average.every: got -3; allowed 1 or more; leave it out to average every step");
}

TEST(Options, AnAverageOfWeightsIsUpdatedByTheHost) {
  Options options{.strategy = Strategy::kZero3, .average = WeightAverage{}};
  EXPECT_THAT(refusal(options, on_gpu()),
              HasSubstr("[options] average: is set, but the parameters are updated on a GPU"));
  for (const Offload offload : {Offload::kOptimizer, Offload::kParameters}) {
    options.offload = offload;
    EXPECT_EQ(refusal(options, on_gpu()), "");
  }
}

TEST(Options, WhatChoosesNothingIsRefused) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    Options options{.strategy = strategy};
    options.wrap.name = "mine";
    EXPECT_THAT(std::string(validate(options).message()),
                HasSubstr("[options] wrap: got the name 'mine' without choose"));
  }
  const auto refusal_of_ignores = [](std::vector<NamedTensor> left) {
    const ParameterTable model(std::move(left));
    const WorldTraits world;
    const Options options{.ignores = [](std::string_view) { return true; }};
    return std::string(validate(options, &model, &world).message());
  };
  EXPECT_THAT(refusal_of_ignores({}), HasSubstr("[options] ignores: leaves the engine none of"));
  EXPECT_EQ(refusal_of_ignores({{"a", at::zeros({1}, at::requires_grad())}}), "") << "the control";
}

TEST(Options, AProblemOfManyParametersIsSaidOnce) {
  const ParameterTable model(
      {{"a", at::zeros({1}, at::requires_grad())}, {"b", at::zeros({1}, at::requires_grad())}});
  const WorldTraits world;
  const std::string text(validate({.precision = {.reduce = at::kHalf}}, &model, &world).message());
  EXPECT_THAT(text, HasSubstr("parameter 'a': precision.reduce: got Half"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("parameter 'b'")));
}

TEST(Options, AreRefusedForTheModelAndTheWorld) {
  const ParameterTable model({{"w", at::ones({3}).set_requires_grad(true)}});
  Options options{.precision = {.communication = at::kDouble}};  // valid for a double model
  EXPECT_TRUE(validate(options).ok());
  const auto resolved = resolve(options, &model, on_cpu());
  EXPECT_THAT(std::string(resolved.status().message()),
              HasSubstr("[options] precision: parameter 'w': precision.communication: got Double"));

  options = {.strategy = Strategy::kHybrid, .degrees = Degrees{2, 3, 6}};
  EXPECT_TRUE(validate(options).ok());
  EXPECT_THAT(refusal(options, on_cpu()), HasSubstr("degrees: got 2,3,6 on a world of 4"));

  options = {.strategy = Strategy::kZero3, .reshard_after_forward = 2};
  WorldTraits world = on_gpu();
  EXPECT_EQ(refusal(options, world), "");
  EXPECT_EQ(refusal({.units_in_reduction = 3}, world), "");
  world.can.one_sided_reads = false;
  world.backend = "nccl";
  EXPECT_THAT(refusal(options, world),
              AllOf(HasSubstr("got 2, expected 1 or the 4"), HasSubstr("backend 'nccl'")));
}

// --- Nothing left open ---

TEST(ResolvedOptions, HaveDefaultsForWhatIsUnset) {
  const ResolvedOptions ddp = *resolve({}, nullptr, on_cpu());
  EXPECT_EQ(ddp.degrees, (Degrees{1, 1, 1}));
  EXPECT_EQ(ddp.residence, Residence::kResident);
  EXPECT_EQ(ddp.reshard_after_forward, 1);
  EXPECT_THAT(ddp.bucket_bytes, ElementsAre(1048576, 26214400));
  EXPECT_EQ(ddp.on_non_finite, NonFinite::kStop);
  EXPECT_FALSE(ddp.asynchronous_step || ddp.prefetch);
  EXPECT_EQ(ddp.units_in_reduction, 1);

  WorldTraits world = on_gpu();
  world.can.in_background = true;
  const ResolvedOptions zero3 =
      *resolve({.strategy = Strategy::kZero3, .loss_scale = LossScale{}}, nullptr, world);
  EXPECT_EQ(zero3.degrees, (Degrees{4, 4, 4}));
  EXPECT_EQ(zero3.residence, Residence::kSplit);
  EXPECT_EQ(zero3.reshard_after_forward, 4);
  EXPECT_EQ(zero3.on_non_finite, NonFinite::kSkip);
  EXPECT_EQ(zero3.units_in_reduction, 2);
  EXPECT_TRUE(zero3.asynchronous_step && zero3.prefetch);
}

TEST(ResolvedOptions, KeepWhatIsSet) {
  const ResolvedOptions set = *resolve({.loss_scale = LossScale{},
                                        .on_non_finite = NonFinite::kStop,
                                        .bucket_bytes = {1024, 2048, 4096},
                                        .asynchronous_step = false},
                                       nullptr, on_gpu());
  EXPECT_EQ(set.on_non_finite, NonFinite::kStop);
  EXPECT_THAT(set.bucket_bytes, ElementsAre(1024, 2048, 4096));
  EXPECT_FALSE(set.asynchronous_step);
}

/// What makes a step wait.
TEST(ResolvedOptions, AreAsynchronousOnlyWhereTheHostHasNothingToDoInAStep) {
  const auto is_late = [](const Options& options) {
    return resolve(options, nullptr, on_gpu())->asynchronous_step;
  };
  EXPECT_TRUE(is_late({.strategy = Strategy::kZero2}));
  EXPECT_FALSE(is_late({.offload = Offload::kOptimizer}));
  EXPECT_FALSE(is_late({.ask_non_finite = [](const auto&) { return NonFinite::kSkip; }}));
  EXPECT_FALSE(is_late({.strategy = Strategy::kHybrid, .degrees = Degrees{1, 2, 4}}));
}

}  // namespace
}  // namespace tessera::internal
