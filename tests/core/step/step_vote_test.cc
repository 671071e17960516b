#include "tessera/core/step/step_vote.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/support/rank_threads.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int kWorld = 3;

struct Ballots {
  StepVote::Paper paper;
  std::vector<int64_t> hyper_parameters;
};

/// Changes what one rank says.
using Change = std::function<void(int rank, Ballots& ballots)>;

StepVote::Paper good_paper(int rank) {
  StepVote::Paper paper;
  paper.step = 1;
  paper.backwards = 1;
  paper.history = 77;
  paper.squares.add(rank + 1.0);  // 1 + 2 + 3 = 6
  return paper;
}

/// Lets three ranks vote; returns each rank's norm or message.
std::vector<std::string> vote(const Change& change) {
  std::vector<std::string> answers(kWorld);
  testing::run_ranks(kWorld, [&](std::shared_ptr<ProcessGroup> world) {
    const ParameterTable table({{"first.weight", at::zeros({3}).set_requires_grad(true)},
                                {"last.bias", at::zeros({2}).set_requires_grad(true)}});
    StepVote step_vote(*world, table, {"defaults: lr", "defaults: eps"});
    Ballots ballots{good_paper(world->rank()),
                    {std::bit_cast<int64_t>(0.1), std::bit_cast<int64_t>(1e-8)}};
    if (change) change(world->rank(), ballots);
    std::string& answer = answers[static_cast<size_t>(world->rank())];
    try {
      answer = std::to_string(step_vote.agree(ballots.paper, ballots.hyper_parameters));
    } catch (const c10::Error& error) {
      answer = error.what_without_backtrace();
    }
    // Whatever the answer was, the next vote works: nobody was left behind.
    const Ballots good{good_paper(world->rank()),
                       {std::bit_cast<int64_t>(0.1), std::bit_cast<int64_t>(1e-8)}};
    EXPECT_EQ(step_vote.agree(good.paper, good.hyper_parameters), std::sqrt(6.0));
  });
  EXPECT_EQ(std::set<std::string>(answers.begin(), answers.end()).size(), 1u)
      << "ranks must say the same";
  return answers;
}

Change on_rank(int culprit, std::function<void(Ballots&)> change) {
  return [culprit, change = std::move(change)](int rank, Ballots& ballots) {
    if (rank == culprit) change(ballots);
  };
}

TEST(StepVote, GivesTheGlobalNormWhenAllAgree) {
  EXPECT_EQ(vote({})[0], std::to_string(std::sqrt(6.0)));
}

TEST(StepVote, RefusesMisuseOfOneRankInItsOwnWords) {
  EXPECT_EQ(vote(on_rank(2, [](Ballots& b) { b.paper.misuse = "it did wrong; undo it"; }))[0],
            "[step] rank 2: it did wrong; undo it. Nothing was applied.");
}

TEST(StepVote, ListsTheMisuseOfAllRanks) {
  const std::string text = vote([](int rank, Ballots& ballots) {
    if (rank != 1) ballots.paper.misuse = "wrong " + std::to_string(rank);
  })[0];
  EXPECT_THAT(text, HasSubstr("[step] rank 0: wrong 0"));
  EXPECT_THAT(text, HasSubstr("[step] rank 2: wrong 2"));
}

TEST(StepVote, RefusesAnotherStep) {
  EXPECT_THAT(vote(on_rank(1, [](Ballots& b) { b.paper.step = 2; }))[0],
              HasSubstr("[step] the number of steps made differs: rank 0 has 1, rank 1 has 2; call "
                        "engine->step() equally often on all ranks. Nothing was applied."));
}

TEST(StepVote, NamesAllRanksWithoutABackward) {
  EXPECT_THAT(vote([](int rank, Ballots& b) { b.paper.backwards = rank == 1 ? 1 : 0; })[0],
              HasSubstr("[step] rank 0, 2 called step() without a backward since the last step; "
                        "call loss.backward() first."));
}

TEST(StepVote, RefusesAnotherHistory) {
  EXPECT_THAT(vote(on_rank(2, [](Ballots& b) { b.paper.history = 78; }))[0],
              HasSubstr("call backward, no_sync and zero_grad alike on all ranks"));
}

TEST(StepVote, RefusesGradientsThatOneRankEdited) {
  EXPECT_THAT(vote(on_rank(1, [](Ballots& b) { b.paper.gradient_edits = 4; }))[0],
              HasSubstr("how often .grad was written in place since backward differs: rank 0 has "
                        "0, rank 1 has 4"));
}

TEST(StepVote, NamesTheHyperParameterThatDiffers) {
  EXPECT_THAT(
      vote(on_rank(1, [](Ballots& b) { b.hyper_parameters[0] = std::bit_cast<int64_t>(0.25); }))[0],
      HasSubstr("[step] hyper-parameter defaults: lr differs: rank 0 has 0.1, rank 1 has "
                "0.25; set it alike on all ranks. Nothing was applied."));
}

TEST(StepVote, SeesTheLastBitOfAHyperParameter) {
  EXPECT_THAT(vote(on_rank(2, [](Ballots& b) { ++b.hyper_parameters[1]; }))[0],
              HasSubstr("hyper-parameter defaults: eps differs"));
}

TEST(StepVote, NamesRankAndParameterOfNonFiniteGradients) {
  const std::string text = vote([](int rank, Ballots& ballots) {
    if (rank == 0) return;
    ballots.paper.non_finite = 10 * rank;
    ballots.paper.non_finite_parameter = rank - 1;
  })[0];
  EXPECT_THAT(text, HasSubstr("[step] non-finite gradient: rank 1 produced 10 NaN or infinite "
                              "elements, first in 'first.weight'; rank 2 produced 20"));
  EXPECT_THAT(text, HasSubstr("first in 'last.bias'. Nothing was applied; engine->zero_grad() "
                              "drops these gradients."));
}

TEST(StepVote, RefusesANormThatIsNotFiniteAlthoughAllGradientsAre) {
  EXPECT_THAT(
      vote(on_rank(
          1, [](Ballots& b) { b.paper.squares.add(std::numeric_limits<double>::infinity()); }))[0],
      HasSubstr("[step] non-finite gradient: every rank's gradient is finite"));
}

TEST(StepVote, SaysTheMostTellingProblemFirst) {
  EXPECT_THAT(vote(on_rank(1,
                           [](Ballots& b) {
                             b.paper.misuse = "the cause";
                             b.paper.history = 1;
                             b.paper.backwards = 0;
                           }))[0],
              HasSubstr("rank 1: the cause"));
}

}  // namespace
}  // namespace tessera
