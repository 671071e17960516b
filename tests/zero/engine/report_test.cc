// Engine::report().
#include "tessera/report.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "tessera/comm_hook.h"
#include "tessera/power_sgd.h"
#include "tessera/tests/support/delayed_group.h"
#include "tessera/tests/zero/engine/engine_fixture.h"
#include "tessera/trace.h"

namespace tessera::internal::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// 7 to 5 to 3; one parameter that is never used, one frozen, and a buffer.
struct Reported : torch::nn::Module {
  Reported() {
    first = register_module("first", torch::nn::Linear(7, 5));
    spare = register_parameter("spare", at::ones({4}));
    second = register_module("second", torch::nn::Linear(5, 3));
    still = register_parameter("still", at::ones({6}), /*requires_grad=*/false);
    register_buffer("seen", at::zeros({2}));
  }
  at::Tensor forward(const at::Tensor& input) { return second(torch::relu(first(input))); }

  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor spare, still;
};

struct ReportedRank : EngineRank<Reported> {
  ReportedRank(std::shared_ptr<ProcessGroup> group, const Options& options)
      : EngineRank(std::move(group), std::make_shared<Reported>(), adamw(), options) {}
  at::Tensor loss(int step) const override {
    return net->forward(at::full({2, 7}, 0.1 * (1 + step + world->rank()))).pow(2).sum();
  }
};

class ReportTest : public ::testing::TestWithParam<std::pair<Configuration, int>> {
 protected:
  void on_ranks(const std::function<void(ReportedRank&)>& body) const {
    run_ranks(GetParam().second, [&](std::shared_ptr<ProcessGroup> world) {
      ReportedRank rank(std::move(world), small_options_of(GetParam().first));
      body(rank);
    });
  }
};

std::map<std::string, std::string> by_name(const Report& report) {
  return {report.options.begin(), report.options.end()};
}

TEST_P(ReportTest, SaysWhatIsTrainedAndHow) {
  on_ranks([](ReportedRank& rank) {
    const Report report = rank.engine->report();
    EXPECT_EQ(report.strategy, rank.engine->strategy());
    EXPECT_EQ(report.degrees, rank.engine->degrees());
    EXPECT_EQ(report.rank, rank.world->rank());
    EXPECT_EQ(report.world, rank.world->size());
    EXPECT_EQ(report.backend, rank.world->backend());
    EXPECT_EQ(report.device, "cpu");

    EXPECT_THAT(report.model.type, HasSubstr("Reported"));
    EXPECT_EQ(report.model.parameters, 6);
    EXPECT_EQ(report.model.elements, 7 * 5 + 5 + 4 + 5 * 3 + 3 + 6);
    EXPECT_EQ(report.model.bytes, 68 * 4);
    EXPECT_EQ(report.model.trained, 5);
    EXPECT_EQ(report.model.trained_elements, 62);
    EXPECT_EQ(report.model.trained_bytes, 62 * 4);
    EXPECT_THAT(report.model.bytes_by_dtype, ElementsAre(std::pair("Float", 68 * 4)));
    EXPECT_EQ(report.model.buffers, 1);
    EXPECT_EQ(report.model.buffer_bytes, 8);

    const UnitPlan& plan = rank.engine->units();
    ASSERT_EQ(report.units.size(), plan.size());
    size_t placed = 0;
    for (size_t i = 0; i < plan.size(); ++i) {
      const Report::Unit& unit = report.units[i];
      EXPECT_EQ(unit.name, plan[i].name) << "the order of the reductions";
      EXPECT_EQ(unit.bytes, plan[i].layout.bytes());
      EXPECT_EQ(unit.communication_bytes, plan[i].kind == UnitKind::kFrozen ? 0 : unit.bytes);
      EXPECT_EQ(unit.dtype, "Float");
      placed += unit.parameters.size();
    }
    const bool has_frozen_units = plan.size() > plan.trainable_size();
    EXPECT_EQ(placed, has_frozen_units ? 6u : 5u);

    auto options = by_name(report);
    EXPECT_EQ(options.at("strategy"), to_string(rank.engine->strategy()));
    EXPECT_EQ(options.at("degrees"), to_string(rank.engine->degrees()));
    EXPECT_EQ(options.at("on_non_finite"), "stop") << "what is in force, not what was passed";
    EXPECT_EQ(options.at("gradient_divide_factor"), absl::StrCat(rank.world->size()));
    EXPECT_EQ(options.at("asynchronous_step"), "false");
    const bool is_shared = GetParam().first.shares_at(rank.world->size());
    EXPECT_EQ(options.at("share_parameters"), is_shared ? "true" : "false");
  });
}

TEST_P(ReportTest, SaysWhatStepsDid) {
  on_ranks([](ReportedRank& rank) {
    const Report before = rank.engine->report();
    EXPECT_EQ(before.steps, 0);
    EXPECT_EQ(before.times.sampled_steps, 0);
    EXPECT_TRUE(before.unused_parameters.empty()) << "no step, no statement";

    const int64_t begin_ns = Trace::now_ns();
    rank.engine->zero_grad();  // a step begins here
    for (int step = 0; step < 12; ++step) rank.train(step);
    const double wall = static_cast<double>(Trace::now_ns() - begin_ns) / 1e9;
    const Report report = rank.engine->report();
    EXPECT_EQ(report.steps, 12);
    EXPECT_EQ(report.last_step.step, 12);
    EXPECT_TRUE(report.last_step.committed);
    EXPECT_EQ(report.last_step.used_parameters, 4);
    EXPECT_THAT(report.unused_parameters, ElementsAre("spare"));
    EXPECT_EQ(report.unused_bytes, 16);
    EXPECT_EQ(report.gathers.gathers, rank.engine->gather_counts().gathers);

    const Report::Times& times = report.times;
    EXPECT_EQ(times.sampled_steps, 10);
    EXPECT_GT(times.forward, 0);
    EXPECT_GT(times.backward, 0);
    EXPECT_GT(times.update, 0);
    EXPECT_GT(times.communication, 0);
    EXPECT_LE(times.overlap, times.communication);
    EXPECT_LE(10 * (times.forward + times.backward + times.update), wall + 1e-6);
    int64_t reduced = 0;
    for (const Report::Unit& unit : report.units) reduced += unit.communication_bytes;
    // Partial sums are communicated a second time.
    const bool has_partial_sums = keeps_partial_sums(report.degrees);
    EXPECT_GE(times.communicated_bytes, reduced);
    if (!has_partial_sums) {
      EXPECT_EQ(times.communicated_bytes, reduced);
    }

    EXPECT_EQ(report.memory.now, rank.engine->memory().now());
    EXPECT_EQ(report.memory.peak_total, rank.engine->memory().peak_total_bytes());
    EXPECT_EQ(report.memory.micro_steps, 1);
    EXPECT_EQ(report.memory.predicted, predicted_memory(*rank.engine, 1));
    EXPECT_EQ(report.memory.predicted_peak, predicted_peak_memory(*rank.engine, 1));
  });
}

TEST_P(ReportTest, IsJsonWithTheSameNumbers) {
  on_ranks([](ReportedRank& rank) {
    rank.train(0);
    const Report report = rank.engine->report();
    const json read = json::parse(to_json(report));  // throws if it is not JSON
    EXPECT_EQ(read.at("strategy"), std::string(to_string(report.strategy)));
    EXPECT_EQ(read.at("degrees").at("optimizer"), report.degrees.optimizer);
    EXPECT_EQ(read.at("options").size(), report.options.size());
    EXPECT_EQ(read.at("options").at("max_grad_norm"), "inf");
    EXPECT_EQ(read.at("model").at("trained_bytes"), 248);
    ASSERT_EQ(read.at("units").size(), report.units.size());
    EXPECT_EQ(read.at("units")[0].at("name"), report.units[0].name);
    EXPECT_EQ(read.at("units")[0].at("parameters").size(), report.units[0].parameters.size());
    EXPECT_EQ(read.at("unused_parameters"), json::array({"spare"}));
    EXPECT_EQ(read.at("times").at("sampled_steps"), 1);
    EXPECT_EQ(read.at("times").at("backward").get<double>(), report.times.backward);
    EXPECT_EQ(read.at("last_step").at("grad_norm").get<double>(), report.last_step.grad_norm);
    EXPECT_TRUE(read.at("comm_hook").is_null());
    EXPECT_EQ(read.at("memory").at("now").at("total"), report.memory.now.total());
    EXPECT_EQ(read.at("memory").at("predicted").at("optimizer"),
              report.memory.predicted[MemoryClass::kOptimizer]);

    const std::string text = to_text(report);
    EXPECT_THAT(text, HasSubstr(absl::StrCat("rank ", report.rank, " of ", report.world)));
    EXPECT_THAT(text, HasSubstr("unused in the last one: spare"));
    EXPECT_THAT(text, HasSubstr(report.units.back().name));
  });
}

INSTANTIATE_TEST_SUITE_P(All, ReportTest, configurations_and_worlds(), name_of);

TEST(Report, EscapesNamesAndHasNoNumberThatJsonHasNot) {
  Report report;
  report.model.type = "a \"type\"\n";
  report.unused_parameters = {"back\\slash", "\xff"};
  report.last_step.grad_norm = std::numeric_limits<double>::infinity();
  report.last_step.weight = std::numeric_limits<double>::quiet_NaN();
  const json read = json::parse(to_json(report));
  EXPECT_EQ(read.at("model").at("type"), report.model.type);
  EXPECT_EQ(read.at("unused_parameters")[0], "back\\slash");
  EXPECT_EQ(read.at("unused_parameters")[1], "\xEF\xBF\xBD");
  EXPECT_TRUE(read.at("last_step").at("grad_norm").is_null());
  EXPECT_TRUE(read.at("last_step").at("weight").is_null());
  EXPECT_FALSE(to_text(report).empty());
}

TEST(Report, CountsReductionsAndNamesTheHook) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    ReportedRank rank(std::move(world), small_options_of(configuration_of(Strategy::kZero1)));
    rank.engine->register_comm_hook(
        power_sgd_hook({.matrix_approximation_rank = 1, .start_power_sgd_iter = 0}));
    for (int micro = 0; micro < 2; ++micro) rank.backward(micro);
    {
      const auto local = rank.engine->no_sync();
      rank.backward(2);
    }
    rank.backward(3);
    rank.engine->step();
    const Report report = rank.engine->report();
    EXPECT_EQ(report.memory.micro_steps, 3) << "without those of no_sync()";
    ASSERT_TRUE(report.comm_hook.has_value());
    EXPECT_EQ(report.comm_hook->name, "powersgd");
    EXPECT_GT(report.comm_hook->bytes, 0);
    EXPECT_FALSE(report.comm_hook->settings.empty());
    int64_t plain = 0;
    for (const Report::Unit& unit : report.units) plain += unit.communication_bytes;
    EXPECT_GT(report.times.communicated_bytes, 0);
    EXPECT_LT(report.times.communicated_bytes, 3 * plain);
    EXPECT_EQ(json::parse(to_json(report)).at("comm_hook").at("name"), "powersgd");
  });
}

TEST(Report, CountsNothingSentWhereAHookSendsNothing) {  // the control of the counts
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    ReportedRank rank(std::move(world), small_options_of(configuration_of(Strategy::kDdp)));
    rank.engine->register_comm_hook(noop_hook());
    rank.train(0);
    EXPECT_EQ(rank.engine->report().times.communicated_bytes, 0);
  });
}

TEST(Report, AStepThatIsDroppedIsNotSampled) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    ReportedRank rank(std::move(world), small_options_of(configuration_of(Strategy::kZero2)));
    rank.backward(0);
    rank.engine->zero_grad();
    EXPECT_EQ(rank.engine->report().times.sampled_steps, 0);
    rank.train(1);
    EXPECT_EQ(rank.engine->report().times.sampled_steps, 1);
  });
}

TEST(Report, IsOfWhatIsTrainedNow) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    ReportedRank rank(std::move(world), small_options_of(configuration_of(Strategy::kZero3)));
    rank.train(0);
    (void)rank.engine->set_trainable([](std::string_view name, const at::Tensor&) {
      return name == "second.weight" || name == "second.bias";
    });
    rank.train(1);
    const Report report = rank.engine->report();
    EXPECT_EQ(report.model.trained, 2);
    EXPECT_EQ(report.steps, 2);
    EXPECT_EQ(report.times.sampled_steps, 1);
    EXPECT_TRUE(report.unused_parameters.empty());
  });
}

TEST(Report, OverlapIsSeenWhereReductionsAreLate) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> world) {
    ReportedRank rank(std::make_shared<DelayedGroup>(std::move(world)),
                      small_options_of(configuration_of(Strategy::kDdp)));
    for (int step = 0; step < 10; ++step) rank.train(step);
    const Report::Times times = rank.engine->report().times;
    EXPECT_GT(times.overlap, 0);
    EXPECT_LT(times.overlap, times.communication) << "the last bucket is waited for";
  });
}

}  // namespace
}  // namespace tessera::internal::testing
