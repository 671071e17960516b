#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tessera/examples/memory_compare/configuration.h"
#include "tessera/examples/memory_compare/fresh_process.h"
#include "tessera/examples/memory_compare/measurement.h"
#include "tessera/examples/memory_compare/table.h"
#include "tessera/tests/support/rank_threads.h"

namespace memory_compare {
namespace {

using tessera::MemoryClass;
using tessera::Strategy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> texts(const std::vector<Configuration>& configurations) {
  std::vector<std::string> texts;
  for (const Configuration& configuration : configurations)
    texts.push_back(to_string(configuration));
  return texts;
}

TEST(Configurations, DefaultsAreWhatTheWorldAllows) {
  EXPECT_THAT(texts(default_configurations(1)), ElementsAre("ddp"));
  EXPECT_THAT(texts(default_configurations(2)),
              ElementsAre("ddp", "zero1", "zero2", "zero3", "zero1:apart", "zero2:apart",
                          "zero3:apart", "zero3:1:apart"));
  EXPECT_EQ(default_configurations(3).size(), 8u);
  const std::vector<std::string> of_six = texts(default_configurations(6));
  EXPECT_EQ(of_six.size(), 11u);
  EXPECT_THAT(std::vector<std::string>(of_six.end() - 3, of_six.end()),
              ElementsAre("hybrid:3,3,3", "hybrid:3,6,6", "hybrid:1,3,6"));
}

TEST(Configurations, AreReadAsTheyAreWritten) {
  for (const char* text : {"ddp", "zero3", "zero3:1", "zero3:apart", "zero3:1:apart",
                           "hybrid:2,4,4", "hybrid:4,4,4:2:apart"}) {
    const auto configuration = parse_configuration(text);
    ASSERT_TRUE(configuration.ok()) << configuration.status();
    EXPECT_EQ(to_string(*configuration), text);
  }
  EXPECT_EQ(parse_configuration("fsdp")->strategy, Strategy::kZero3);
  EXPECT_THAT(texts(*parse_configurations("  ddp zero3:1 ")), ElementsAre("ddp", "zero3:1"));
}

TEST(Configurations, EveryBadOneIsListed) {
  const auto configurations =
      parse_configurations("zero4 hybrid ddp hybrid:2,x,2 zero3:0 zero3:1:2");
  ASSERT_FALSE(configurations.ok());
  const std::string message(configurations.status().message());
  EXPECT_THAT(message, HasSubstr("[memory_compare] --configurations: got 'zero4', "));
  EXPECT_THAT(message, HasSubstr("got 'hybrid', expected degrees after it"));
  EXPECT_THAT(message, HasSubstr("got 'hybrid:2,x,2', "));
  EXPECT_THAT(message, HasSubstr("got 'zero3:0', expected a number of ranks from 1"));
  EXPECT_THAT(message, HasSubstr("got 'zero3:1:2', expected strategy[:degrees]"));
}

/// Blocks of odd sizes, so that everything needs padding.
Workload tiny(c10::ScalarType parameters = c10::ScalarType::Float) {
  Workload workload;
  workload.model = {.layers = 3, .heads = 2, .width = 22, .context = 7, .vocabulary = 31};
  workload.batch = 2;
  workload.steps = 3;
  workload.parameters = parameters;
  return workload;
}

Measurement measure_on_threads(const Configuration& configuration, const Workload& workload,
                               int ranks) {
  std::mutex mutex;
  std::vector<Measurement> by_rank;
  tessera::internal::testing::run_ranks(ranks, [&](std::shared_ptr<tessera::ProcessGroup> world) {
    Measurement measurement = measure(configuration, workload, world);
    const std::lock_guard lock(mutex);
    by_rank.push_back(std::move(measurement));
  });
  for (const Measurement& other : by_rank) EXPECT_EQ(other, by_rank.front());
  return by_rank.front();
}

class EveryConfiguration : public ::testing::TestWithParam<int> {};

TEST_P(EveryConfiguration, HoldsWhatTheFormulaSaysToTheByte) {
  for (const c10::ScalarType dtype : {c10::ScalarType::Float, c10::ScalarType::BFloat16}) {
    for (const Configuration& configuration : default_configurations(GetParam())) {
      SCOPED_TRACE(to_string(configuration) + " " + c10::toString(dtype));
      const Measurement measurement = measure_on_threads(configuration, tiny(dtype), GetParam());
      ASSERT_EQ(measurement.ranks.size(), static_cast<size_t>(GetParam()));
      EXPECT_TRUE(is_exact(measurement));
      for (const RankMemory& rank : measurement.ranks) {
        for (size_t c = 0; c < tessera::kMemoryClasses; ++c) {
          const auto memory_class = static_cast<MemoryClass>(c);
          if (memory_class == MemoryClass::kControl ||
              memory_class == MemoryClass::kGradientBuffers) {
            continue;
          }
          EXPECT_EQ(rank.held[memory_class], rank.persistent[memory_class])
              << to_string(memory_class);
        }
        EXPECT_EQ(rank.unsharded_buffers_added, 0);
        EXPECT_GE(rank.peak_bytes, rank.held.total());
        EXPECT_GT(rank.pss_bytes, 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryConfiguration, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return "World" + std::to_string(info.param); });

TEST(Measurement, SecondShardsAndSmallerGroupsAreExactToo) {
  for (const char* configuration : {"zero3:2:apart", "hybrid:4,4,4:2:apart", "hybrid:2,2,4",
                                    "hybrid:1,1,2", "hybrid:1,1,2:apart"}) {
    EXPECT_TRUE(is_exact(measure_on_threads(*parse_configuration(configuration), tiny(), 4)))
        << configuration;
  }
}

TEST(Measurement, ConfigurationsThatShouldDifferDo) {
  const auto total = [](const char* configuration) {
    return measure_on_threads(*parse_configuration(configuration), tiny(), 2)
        .ranks[0]
        .persistent.total();
  };
  EXPECT_GT(total("ddp"), total("zero1"));
  EXPECT_GT(total("zero1"), total("zero2"));
  EXPECT_GT(total("zero3:1:apart"), total("zero3:apart"));
  EXPECT_GT(total("zero2:apart"), total("zero2"));
  EXPECT_EQ(total("zero3:1"), total("zero3"));
}

Measurement made_up() {
  Measurement measurement;
  measurement.parameter_numel = int64_t{3} << 20;
  measurement.matrix_numel = int64_t{2} << 20;
  measurement.ranks.resize(2);
  for (RankMemory& rank : measurement.ranks) {
    rank.persistent[MemoryClass::kParameters] = int64_t{12} << 20;
    rank.persistent[MemoryClass::kOptimizer] = int64_t{24} << 20;
    rank.peak = rank.persistent;
    rank.peak[MemoryClass::kGradientBuffers] = int64_t{2} << 20;
    rank.held = rank.peak;
    rank.held[MemoryClass::kControl] = 1000;
    rank.peak_bytes = rank.held.total();
    rank.pss_bytes = int64_t{99} << 20;
    rank.shared_bytes = int64_t{17} << 20;
  }
  return measurement;
}

TEST(Measurement, IsExactOrNot) {
  EXPECT_TRUE(is_exact(made_up()));
  Measurement more = made_up();
  ++more.ranks[1].held[MemoryClass::kParameters];
  EXPECT_FALSE(is_exact(more)) << "the negative control";
  Measurement zero1 = made_up();
  zero1.ranks[1].persistent[MemoryClass::kGradientBuffers] = int64_t{1} << 20;
  EXPECT_FALSE(is_exact(zero1)) << "a gradient buffer that lasts counts";
}

TEST(Measurement, TravelsAsWords) {
  std::vector<int64_t> words = to_words(made_up());
  EXPECT_EQ(from_words(words), made_up());
  words.pop_back();
  EXPECT_THAT([&] { from_words(words); }, ::testing::ThrowsMessage<std::invalid_argument>(
                                              HasSubstr("[memory_compare] result: got a cut one")));
  EXPECT_THROW(from_words({}), std::invalid_argument);
}

const gpt::Optimizer& optimizer_called(const std::string& name) {
  for (const gpt::Optimizer& row : gpt::optimizers()) {
    if (name == row.name) return row;
  }
  throw std::invalid_argument(name);
}

TEST(Measurement, PyTorchNeedsTwentyBytesPerParameterUnderAdamW) {
  Measurement thousand;
  thousand.parameter_numel = 1000;
  thousand.matrix_numel = 900;
  EXPECT_EQ(pytorch_ddp(thousand, gpt::optimizers().front()).total(), 20000);
  EXPECT_EQ(pytorch_ddp(thousand, optimizer_called("sgd")).total(), 16000);
  EXPECT_EQ(pytorch_ddp(thousand, optimizer_called("adamw8bit")).total(), 14125);
  EXPECT_EQ(pytorch_ddp(thousand, optimizer_called("muon")).total(), 16400);
}

/// Measures on `ranks` ranks under --optimizer `name`.
Measurement measure_under(const gpt::Optimizer& optimizer, const char* configuration, int ranks) {
  Workload workload = tiny();
  workload.optimizer = &optimizer;
  return measure_on_threads(*parse_configuration(configuration), workload, ranks);
}

TEST(Measurement, EveryOptimizerIsAsPredictedAndHoldsItsStates) {
  for (const gpt::Optimizer& optimizer : gpt::optimizers()) {
    for (const char* configuration : {"ddp", "zero2", "zero3:apart"}) {
      SCOPED_TRACE(std::string(optimizer.name) + " " + configuration);
      const Measurement measurement = measure_under(optimizer, configuration, 3);
      EXPECT_TRUE(is_exact(measurement));
      if (optimizer.others != nullptr) continue;
      // A state has the size of the trained parameters and is split like them.
      const Measurement lion = measure_under(optimizer_called("lion"), configuration, 3);
      const auto bytes = [](const Measurement& of) {
        return static_cast<double>(of.ranks[0].persistent[MemoryClass::kOptimizer]);
      };
      EXPECT_EQ(bytes(measurement) * 4.0, bytes(lion) * optimizer.state_bytes);
    }
  }
}

TEST(Measurement, RanksNeedDifferentAmountsUnderMuon) {
  const Measurement measurement = measure_under(optimizer_called("muon"), "zero2", 3);
  EXPECT_TRUE(is_exact(measurement));
  const RankMemory& largest = measurement.ranks[largest_rank(measurement)];
  bool is_uneven = false;
  for (const RankMemory& rank : measurement.ranks) {
    EXPECT_LE(rank.peak.total(), largest.peak.total());
    is_uneven = is_uneven || rank.persistent != largest.persistent;
  }
  EXPECT_TRUE(is_uneven);
}

Comparison comparison_of(const Measurement& measurement, const Workload& workload = tiny()) {
  return {.workload = workload,
          .ranks = 2,
          .configurations = {{*parse_configuration("zero2"), measurement}}};
}

TEST(Table, SaysWhetherBytesAreAsPredicted) {
  const std::string good = to_table(comparison_of(made_up()), TableFormat::kAligned);
  EXPECT_THAT(good, HasSubstr("Memory of 3.15 M parameters on 2 ranks: GPT with 3 layers"));
  EXPECT_THAT(good, HasSubstr("PyTorch DDP, fp32  modelled"));
  EXPECT_THAT(good, HasSubstr("zero2              predicted"));
  EXPECT_THAT(good, HasSubstr("measured, ranks 0-1       12.00       0.00      24.00"));
  EXPECT_THAT(good,
              HasSubstr("Persistent bytes are as predicted, to the byte, in every configuration."));
  EXPECT_THAT(good, Not(HasSubstr("Peaks above")));

  Measurement off = made_up();
  off.ranks[1].held[MemoryClass::kOptimizer] += 1 << 20;
  off.ranks[1].peak_bytes += 1 << 20;
  const std::string bad = to_table(comparison_of(off), TableFormat::kAligned);
  EXPECT_THAT(bad, HasSubstr("Persistent bytes are not as predicted: zero2."));
  EXPECT_THAT(bad, HasSubstr("Peaks above the predicted ones: zero2."));
  EXPECT_THAT(bad, HasSubstr("measured, rank 1 "));
}

TEST(Table, NamesTheRankOfWhichMostIsPredicted) {
  Measurement uneven = made_up();
  RankMemory& more = uneven.ranks[1];
  for (tessera::MemoryBytes* const bytes : {&more.persistent, &more.peak, &more.held}) {
    (*bytes)[MemoryClass::kOptimizer] += 1 << 20;
  }
  more.peak_bytes += 1 << 20;
  const std::string text = to_table(comparison_of(uneven), TableFormat::kAligned);
  EXPECT_THAT(text, HasSubstr("zero2              predicted, most: rank 1       12.00       0.00"
                              "      25.00"));
  EXPECT_THAT(text, HasSubstr("measured, rank 0              12.00       0.00      24.00"));
  EXPECT_THAT(text, HasSubstr("measured, rank 1              12.00       0.00      25.00"));
  EXPECT_THAT(text, HasSubstr("to the byte, in every configuration."));
  EXPECT_EQ(to_chart(comparison_of(uneven)).bars[1].outline, 39.0);

  // The negative control: each rank is compared with its own prediction.
  std::swap(uneven.ranks[0].held, uneven.ranks[1].held);
  EXPECT_THAT(to_table(comparison_of(uneven), TableFormat::kAligned),
              HasSubstr("Persistent bytes are not as predicted: zero2."));
}

TEST(Table, IsMarkdownToo) {
  const std::string text = to_table(comparison_of(made_up()), TableFormat::kMarkdown);
  EXPECT_THAT(text, HasSubstr("## Memory of 3.15 M parameters on 2 ranks\n"));
  EXPECT_THAT(text, HasSubstr("\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"));
  EXPECT_THAT(text, HasSubstr("| zero2 | predicted | 12.00 | 0.00 | 24.00 |"));
  EXPECT_THAT(text, HasSubstr(" | 17.00 | 99.00 |\n"));
}

TEST(Table, NamesTheOptimizerAndItsBytes) {
  Workload workload = tiny();
  const std::string adamw = to_table(comparison_of(made_up()), TableFormat::kAligned);
  EXPECT_THAT(adamw, HasSubstr("fp32 parameters, AdamW; "));
  EXPECT_THAT(adamw, HasSubstr("20 bytes per parameter without padding"));
  EXPECT_THAT(adamw, HasSubstr("and two moments of AdamW."));
  workload.optimizer = &optimizer_called("lion");
  const std::string lion = to_table(comparison_of(made_up(), workload), TableFormat::kAligned);
  EXPECT_THAT(lion, HasSubstr("fp32 parameters, Lion; "));
  EXPECT_THAT(lion, HasSubstr("16 bytes per parameter without padding"));
  EXPECT_THAT(lion, HasSubstr("and a momentum of Lion."));
}

TEST(ToChart, FramesThePrediction) {
  const Chart chart = to_chart(comparison_of(made_up()));
  ASSERT_EQ(chart.bars.size(), 2u);
  EXPECT_EQ(chart.bars[0].fill, Chart::Fill::kHatched);
  EXPECT_FALSE(chart.bars[0].outline.has_value());
  EXPECT_EQ(chart.bars[1].label, "zero2");
  EXPECT_EQ(chart.bars[1].outline, 38.0);
  EXPECT_THAT(chart.bars[1].values, ElementsAre(12, 0, 24, 0, 0, 2));
}

TEST(FreshProcess, ReturnsWhatItsBodyDoes) {
  int here = 0;
  const std::vector<int64_t> large(100000, 7);
  EXPECT_EQ(run_in_fresh_process([&] {
              here = 1;
              return large;
            }),
            large);
  EXPECT_EQ(here, 0) << "the body ran in this process";
}

TEST(FreshProcess, ItsEndIsReported) {
  EXPECT_THAT(
      [] {
        run_in_fresh_process([]() -> std::vector<int64_t> { throw std::runtime_error("no"); });
      },
      ::testing::ThrowsMessage<std::runtime_error>(HasSubstr("failed; it has said why")));
  EXPECT_THAT(
      [] {
        run_in_fresh_process([]() -> std::vector<int64_t> {
          std::raise(SIGKILL);
          return {};
        });
      },
      ::testing::ThrowsMessage<std::runtime_error>(HasSubstr("died of signal 9")));
}

}  // namespace
}  // namespace memory_compare
