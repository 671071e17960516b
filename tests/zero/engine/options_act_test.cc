#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/memory_meter.h"
#include "tessera/parallelize.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

// Options that depend on the layout of parameters: each changes what an engine does, or is refused,
// or is a bound that ranks which share parameters keep anyway. The table of all options is in
// tests/core/options/options_test.cc.

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Describes what rank 0 observes of an engine with `options` in three steps and in an operator
/// that reads three units at once; or how it is refused.
std::string observe(const Options& options) {
  std::string seen;
  const std::vector<std::string> errors =
      run_ranks_expecting_errors(2, [&](const std::shared_ptr<ProcessGroup>& world) {
        const std::shared_ptr<Net> net = prepare(subject("DeepMlp").make(), at::kFloat, 7);
        const auto engine = parallelize(net, make_plan(*net), options, world);
        const Schedule schedule{.name = ""};
        int64_t whole_units = 0;  // between forward and backward
        for (int step = 0; step < 3; ++step) {
          const Moment moment{.step = step, .rank = world->rank()};
          const Batch batch = batch_of(subject("DeepMlp"), at::kFloat, schedule, moment, 0);
          const at::Tensor loss = loss_of(*net, batch, moment, schedule);
          whole_units = engine->memory().now()[MemoryClass::kUnshardedParameters];
          loss.backward();
          engine->step();
        }
        const GatherCounts counts = engine->gather_counts();
        std::string text = absl::StrCat(
            engine->units().size(), " units, first of ", engine->units()[0].parameters.size(), ", ",
            predicted_memory(*engine, 1)[MemoryClass::kParameters], " + ",
            predicted_memory(*engine, 1)[MemoryClass::kGradients], " bytes, ", whole_units,
            " between, ", counts.bytes, " copied, prefetched ", counts.prefetched > 0,
            counts.bytes > 0 ? absl::StrCat(", freed ", counts.frees) : "");
        std::vector<at::Tensor> weights;
        for (const at::Tensor& parameter : net->parameters()) {
          if (parameter.dim() == 2 && parameter.size(0) == 17 && parameter.size(1) == 17) {
            weights.push_back(parameter);
          }
        }
        try {
          const at::NoGradGuard no_grad;
          at::stack(weights);
        } catch (const c10::Error&) {
          text += ", not all at once";
        }
        if (world->rank() == 0) seen = text;
      });
  for (const std::string& error : errors) {
    if (!error.empty()) return "failed: " + error;
  }
  return seen;
}

struct OptionCase {
  std::string option;
  std::function<void(Options&)> set;
  bool refused_where_whole;
  bool refused_where_split;
  bool kept_where_shared;
};

class OptionsAct : public ::testing::TestWithParam<OptionCase> {};

TEST_P(OptionsAct, OrAreRefusedOrAreKept) {
  const OptionCase& option = GetParam();
  for (const Configuration& configuration : named_and_apart_configurations()) {
    SCOPED_TRACE(configuration);
    Options options = options_of(configuration);
    if (option.option == "wrap") options.wrap = {};
    if (option.option == "share_parameters") options.share_parameters = true;
    if (configuration.splits_parameters() && option.option != "prefetch") options.prefetch = false;
    const std::string before = observe(options);
    EXPECT_THAT(before, Not(HasSubstr("failed")));
    option.set(options);
    const std::string after = observe(options);
    const bool is_split = configuration.splits_parameters();
    if (is_split ? option.refused_where_split : option.refused_where_whole) {
      EXPECT_THAT(after, HasSubstr("[options] " + option.option + ": is "));
    } else if (option.option == "share_parameters" && configuration.strategy == Strategy::kDdp) {
      EXPECT_THAT(after, HasSubstr("[options] share_parameters: got false"));
    } else if (option.kept_where_shared && configuration.shares_at(2)) {
      EXPECT_EQ(after, before) << "sharing keeps it";
    } else {
      EXPECT_NE(after, before) << "it acts";
      EXPECT_THAT(after, Not(HasSubstr("failed")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , OptionsAct,
    ::testing::Values(
        OptionCase{"wrap", [](Options& options) { options.wrap = wrap_layers(); }, true, false,
                   false},
        OptionCase{"reshard_after_forward",
                   [](Options& options) { options.reshard_after_forward = 1; }, true, false, true},
        OptionCase{"share_parameters", [](Options& options) { options.share_parameters = false; },
                   false, false, false},
        OptionCase{"bucket_bytes", [](Options& options) { options.bucket_bytes = {1024}; }, false,
                   true, false},
        OptionCase{"prefetch", [](Options& options) { options.prefetch = true; }, true, false,
                   true},
        OptionCase{"fixed_unsharded_buffers",
                   [](Options& options) { options.fixed_unsharded_buffers = true; }, true, false,
                   true}),
    [](const auto& info) { return info.param.option; });

// Negative control: an option without effect is noticed everywhere.
TEST(OptionsActControl, AnOptionWithoutEffectIsNoticed) {
  for (const Configuration& configuration : named_and_apart_configurations()) {
    Options options = options_of(configuration);
    if (configuration.splits_parameters()) options.prefetch = false;
    EXPECT_EQ(observe(options), observe(options)) << configuration;
  }
}

}  // namespace
}  // namespace tessera::internal::testing
