#include "tessera/core/step/step_vote.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kWorld = 3;

/// Changes one rank's report.
using Change = std::function<void(int rank, StepVote::RankReport& report)>;

StepVote::Result agree(StepVote& step_vote, StepVote::RankReport report) {
  step_vote.start(std::move(report));
  return step_vote.finish();
}

/// A rank's part of the 2-norm, made of these squares.
NormSum norm_of(const std::vector<double>& squares) {
  ExactSum sum;
  for (const double square : squares) sum.add(square);
  return NormSum(sum);
}

StepVote::RankReport good_report(int rank) {
  StepVote::RankReport rank_report;
  rank_report.step = 1;
  rank_report.backwards = 1;
  rank_report.history = 77;
  rank_report.hyper_parameters = {std::bit_cast<int64_t>(0.1), std::bit_cast<int64_t>(1e-8)};
  rank_report.norms = {norm_of({rank + 1.0})};  // 1 + 2 + 3 = 6
  return rank_report;
}

/// Describes a result completely.
std::string text_of(const StepVote::Result& result) {
  if (!result.non_finite.has_value()) return std::to_string(result.grad_norm);
  EXPECT_FALSE(std::isfinite(result.grad_norm));
  const NonFiniteReport& report = *result.non_finite;
  std::string text =
      "step " + std::to_string(report.step) + " scale " + std::to_string(report.loss_scale) + ":";
  for (const NonFiniteGradient& gradient : report.gradients) {
    text += " rank " + std::to_string(gradient.rank) + " '" + gradient.parameter + "' " +
            std::to_string(gradient.elements) + ";";
  }
  return text + " " + describe(report);
}

/// Lets three ranks vote; returns each rank's result or error.
std::vector<std::string> vote(const Change& change) {
  std::vector<std::string> answers(kWorld);
  testing::run_ranks(kWorld, [&](const std::shared_ptr<ProcessGroup>& world) {
    const ParameterTable table({{"first.weight", at::zeros({3}).set_requires_grad(true)},
                                {"last.bias", at::zeros({2}).set_requires_grad(true)}});
    StepVote step_vote(*world, table, {"defaults: lr", "defaults: eps"});
    StepVote::RankReport report = good_report(world->rank());
    if (change) change(world->rank(), report);
    std::string& answer = answers[static_cast<size_t>(world->rank())];
    try {
      answer = text_of(agree(step_vote, report));
    } catch (const c10::Error& error) {
      answer = error.what_without_backtrace();
    }
    // Whatever the answer was, the next vote works: no rank was left behind.
    const StepVote::Result result = agree(step_vote, good_report(world->rank()));
    EXPECT_EQ(result.grad_norm, std::sqrt(6.0));
    EXPECT_FALSE(result.non_finite.has_value());
  });
  EXPECT_EQ(std::set<std::string>(answers.begin(), answers.end()).size(), 1u)
      << "ranks must say the same";
  return answers;
}

Change on_rank(int culprit, std::function<void(StepVote::RankReport&)> change) {
  return [culprit, change = std::move(change)](int rank, StepVote::RankReport& report) {
    if (rank == culprit) change(report);
  };
}

TEST(StepVote, GivesTheGlobalNormWhenAllAgree) {
  EXPECT_EQ(vote({})[0], std::to_string(std::sqrt(6.0)));
}

TEST(StepVote, RefusesMisuseOfOneRankInItsOwnWords) {
  EXPECT_EQ(
      vote(on_rank(2, [](StepVote::RankReport& b) { b.misuse = "it did wrong; undo it"; }))[0],
      "[step] rank 2: it did wrong; undo it. Nothing was applied.");
}

TEST(StepVote, EndsRefusalsWithWhatHasBecomeOfTheParameters) {
  for (const bool is_misuse : {true, false}) {
    EXPECT_THAT(vote([is_misuse](int rank, StepVote::RankReport& b) {
                  b.if_refused = "Something was.";
                  if (rank == 1 && is_misuse) b.misuse = "it did wrong";
                  if (rank == 1) b.step = 5;
                })[0],
                AllOf(::testing::EndsWith(" Something was."), Not(HasSubstr("Nothing was"))));
  }
}

TEST(StepVote, ListsTheMisuseOfAllRanks) {
  const std::string text = vote([](int rank, StepVote::RankReport& report) {
    if (rank != 1) report.misuse = "wrong " + std::to_string(rank);
  })[0];
  EXPECT_THAT(text, HasSubstr("[step] rank 0: wrong 0"));
  EXPECT_THAT(text, HasSubstr("[step] rank 2: wrong 2"));
}

TEST(StepVote, RefusesAnotherStep) {
  EXPECT_THAT(vote(on_rank(1, [](StepVote::RankReport& b) { b.step = 2; }))[0],
              HasSubstr("[step] the number of steps made differs: rank 0 has 1, rank 1 has 2; call "
                        "engine->step() equally often on all ranks. Nothing was applied."));
}

TEST(StepVote, NamesAllRanksWithoutABackward) {
  EXPECT_THAT(vote([](int rank, StepVote::RankReport& b) { b.backwards = rank == 1 ? 1 : 0; })[0],
              HasSubstr("[step] rank 0, 2 called step() without a backward since the last step; "
                        "call loss.backward() first."));
}

TEST(StepVote, RefusesAnotherHistory) {
  EXPECT_THAT(vote(on_rank(2, [](StepVote::RankReport& b) { b.history = 78; }))[0],
              HasSubstr("call backward, no_sync and zero_grad alike on all ranks"));
}

TEST(StepVote, RefusesGradientsThatOneRankEdited) {
  EXPECT_THAT(vote(on_rank(1, [](StepVote::RankReport& b) { b.gradient_edits = 4; }))[0],
              HasSubstr("how often .grad was written in place since backward differs: rank 0 has "
                        "0, rank 1 has 4"));
}

TEST(StepVote, NamesTheHyperParameterThatDiffers) {
  EXPECT_THAT(vote(on_rank(1,
                           [](StepVote::RankReport& b) {
                             b.hyper_parameters[0] = std::bit_cast<int64_t>(0.25);
                           }))[0],
              HasSubstr("[step] hyper-parameter defaults: lr differs: rank 0 has 0.1, rank 1 has "
                        "0.25; set it alike on all ranks. Nothing was applied."));
}

TEST(StepVote, SeesTheLastBitOfAHyperParameter) {
  EXPECT_THAT(vote(on_rank(2, [](StepVote::RankReport& b) { ++b.hyper_parameters[1]; }))[0],
              HasSubstr("hyper-parameter defaults: eps differs"));
}

TEST(StepVote, GivesTheNormWithoutTheLossScale) {
  EXPECT_EQ(vote([](int, StepVote::RankReport& report) { report.loss_scale = 8.0; })[0],
            std::to_string(std::sqrt(6.0) / 8.0));
}

TEST(StepVote, NamesTheLossScaleThatDiffers) {
  EXPECT_THAT(
      vote(on_rank(2, [](StepVote::RankReport& b) { b.loss_scale = 65536.0; }))[0],
      HasSubstr("[step] the loss scale differs: rank 0 has 1, rank 2 has 65536; set it alike "
                "on all ranks. Nothing was applied."));
}

TEST(StepVote, ReportsRankAndParameterOfNonFiniteGradients) {
  const std::string text = vote([](int rank, StepVote::RankReport& report) {
    if (rank == 0) return;
    report.non_finite = 10 * rank;
    report.non_finite_parameter = rank - 1;
  })[0];
  EXPECT_EQ(text,
            "step 1 scale 1.000000: rank 1 'first.weight' 10; rank 2 'last.bias' 20; "
            "[step] non-finite gradient: rank 1 produced 10 NaN or infinite elements, first in "
            "'first.weight'; rank 2 produced 20 NaN or infinite elements, first in 'last.bias'. "
            "Nothing was applied; engine->zero_grad() drops these gradients.");
}

TEST(StepVote, ReportsAMeanThatIsNotFiniteAlthoughAllGradientsAre) {
  const std::string text = vote([](int rank, StepVote::RankReport& report) {
    report.loss_scale = 4.0;
    if (rank == 1) {
      report.norms = {norm_of({2.0, std::numeric_limits<double>::infinity()})};
    }
  })[0];
  EXPECT_EQ(text,
            "step 1 scale 4.000000: rank 1 '' 0; [step] non-finite gradient under loss scale 4: "
            "every rank's gradient is finite, the norm of their mean is not. Nothing was applied; "
            "scale the loss down, engine->zero_grad() drops these gradients.");
}

/// A sum of finite parts may overflow.
TEST(StepVote, ReportsANormThatIsTooLargeForADouble) {
  const std::string text = vote([](int, StepVote::RankReport& report) {
    constexpr double kMax = std::numeric_limits<double>::max();
    report.norms = {norm_of({kMax, kMax})};
  })[0];
  EXPECT_THAT(text, HasSubstr("the norm of their mean is not"));
}

/// Whether one rank's part alone overflows depends on the strategy; the refusal must not.
TEST(StepVote, ReportsANormThatIsTooLargeOnlyOverAllRanks) {
  const std::string text = vote([](int, StepVote::RankReport& report) {
    report.norms = {norm_of({0.9 * std::numeric_limits<double>::max()})};
  })[0];
  EXPECT_THAT(text, StartsWith("step 1 scale 1.000000: rank -1 '' 0; "));
  EXPECT_THAT(text, HasSubstr("the norm of their mean is not"));
}

/// With a loss scale below 1, gradients are larger than the summed values.
TEST(StepVote, ReportsANormThatIsTooLargeWithoutTheLossScale) {
  const std::string text = vote([](int, StepVote::RankReport& report) {
    report.loss_scale = 1e-160;
    report.norms = {norm_of({1e300})};
  })[0];
  EXPECT_THAT(text, HasSubstr("the norm of their mean is not"));
}

TEST(StepVote, GivesTheNormOfEachGroupAndOfAll) {
  testing::run_ranks(kWorld, [](const std::shared_ptr<ProcessGroup>& world) {
    const ParameterTable table({{"a", at::zeros({3}).set_requires_grad(true)}});
    StepVote step_vote(*world, table, {"defaults: lr", "defaults: eps"}, /*trace=*/nullptr,
                       /*norms=*/2);
    StepVote::RankReport report = good_report(world->rank());
    report.loss_scale = 2.0;
    report.norms = {norm_of({world->rank() + 1.0}), norm_of({1.0})};
    const StepVote::Result result = agree(step_vote, report);
    EXPECT_EQ(result.norms, (std::vector<double>{std::sqrt(6.0) / 2, std::sqrt(3.0) / 2}));
    EXPECT_EQ(result.grad_norm, 3.0 / 2);
  });
}

TEST(StepVote, GivesTheLargestElementOfAnyRankAndLosesNoNan) {
  constexpr double kLargest = std::numeric_limits<double>::infinity();
  for (const bool has_nan : {false, true}) {
    testing::run_ranks(kWorld, [&](const std::shared_ptr<ProcessGroup>& world) {
      const ParameterTable table({{"a", at::zeros({3}).set_requires_grad(true)}});
      StepVote step_vote(*world, table, {"defaults: lr", "defaults: eps"});
      StepVote::RankReport report = good_report(world->rank());
      report.norms = {NormSum(kLargest)};
      const at::Tensor values = at::full({2}, -1.5 - world->rank(), at::kDouble);
      if (has_nan && world->rank() == 1) values[0] = std::nan("");
      report.norms[0].add(values, {0, 0, 0, 2}, kLargest);
      const StepVote::Result result = agree(step_vote, report);
      ASSERT_EQ(result.non_finite.has_value(), has_nan);
      if (has_nan) {
        EXPECT_EQ(result.non_finite->gradients.at(0).rank, 1);
        EXPECT_TRUE(std::isnan(result.grad_norm));
      } else {
        EXPECT_EQ(result.grad_norm, 3.5);
      }
    });
  }
}

TEST(StepVote, DifferencesComeBeforeNonFiniteGradients) {
  EXPECT_THAT(vote(on_rank(1,
                           [](StepVote::RankReport& b) {
                             b.non_finite = 1;
                             b.non_finite_parameter = 0;
                             b.history = 3;
                           }))[0],
              HasSubstr("what was reduced and dropped (a hash of it) differs"));
}

// --- ask() ---

using Ask = std::function<NonFinite(const NonFiniteReport&)>;

/// Lets three ranks ask; returns each rank's answer or error.
std::vector<std::string> ask(const std::function<Ask(int rank)>& ask_of) {
  std::vector<std::string> answers(kWorld);
  testing::run_ranks(kWorld, [&](const std::shared_ptr<ProcessGroup>& world) {
    const ParameterTable table({{"weight", at::zeros({3}).set_requires_grad(true)}});
    StepVote step_vote(*world, table, {});
    NonFiniteReport report;
    report.step = 5;
    std::string& answer = answers[static_cast<size_t>(world->rank())];
    try {
      const NonFinite agreed = step_vote.ask(ask_of(world->rank()), report);
      answer = agreed == NonFinite::kSkip ? "skip" : "stop";
    } catch (const c10::Error& error) {
      answer = error.what_without_backtrace();
    } catch (const std::exception& error) {
      answer = std::string("own: ") + error.what();
    } catch (int number) {
      answer = "own: " + std::to_string(number);
    }
    // No rank was left behind.
    const auto skip = [](const NonFiniteReport&) { return NonFinite::kSkip; };
    EXPECT_EQ(step_vote.ask(skip, report), NonFinite::kSkip);
  });
  return answers;
}

TEST(StepVoteAsk, PassesTheReportAndReturnsTheCommonAnswer) {
  const auto answers = ask([](int) {
    return [](const NonFiniteReport& report) {
      return report.step == 5 ? NonFinite::kSkip : NonFinite::kStop;
    };
  });
  EXPECT_THAT(answers, ::testing::Each("skip"));
}

TEST(StepVoteAsk, NamesRanksThatAnswerDifferently) {
  const auto answers = ask([](int rank) {
    return
        [rank](const NonFiniteReport&) { return rank == 1 ? NonFinite::kSkip : NonFinite::kStop; };
  });
  EXPECT_THAT(answers,
              ::testing::Each(HasSubstr(
                  "[step] Options::ask_non_finite: got different answers (rank 0 kStop, "
                  "rank 1 kSkip, rank 2 kStop), expected one; decide by the report alone")));
}

TEST(StepVoteAsk, NamesTheRankWhoseFunctionThrewAndLetsItsExceptionPass) {
  const auto answers = ask([](int rank) {
    return [rank](const NonFiniteReport&) -> NonFinite {
      if (rank == 2) throw std::runtime_error("no idea");
      return NonFinite::kSkip;
    };
  });
  EXPECT_EQ(answers[2], "own: no idea");
  EXPECT_THAT(answers[0],
              HasSubstr("[step] rank 2: Options::ask_non_finite threw: no idea. Nothing "
                        "was applied"));
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(StepVoteAsk, TakesExceptionsOfAnyType) {
  const auto answers = ask([](int rank) {
    return [rank](const NonFiniteReport&) -> NonFinite {
      if (rank == 0) throw 7;
      return NonFinite::kSkip;
    };
  });
  EXPECT_EQ(answers[0], "own: 7");
  EXPECT_THAT(answers[1], HasSubstr("[step] rank 0: Options::ask_non_finite threw: an exception of "
                                    "unknown type"));
}

TEST(StepVote, SaysTheMostTellingProblemFirst) {
  EXPECT_THAT(vote(on_rank(1,
                           [](StepVote::RankReport& b) {
                             b.misuse = "the cause";
                             b.history = 1;
                             b.backwards = 0;
                           }))[0],
              HasSubstr("rank 1: the cause"));
}

}  // namespace
}  // namespace tessera::internal
