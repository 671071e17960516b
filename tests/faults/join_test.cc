#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/support/group_without_windows.h"

// Failures in a loop over join(): every rank gets an error that names the ranks, and no rank waits.
namespace tessera::internal::testing {
namespace {

using ::testing::Each;

using JoinFaults = ConfigurationAndWorld;
INSTANTIATE_TEST_SUITE_P(Faults, JoinFaults, ::testing::ValuesIn(settings({2, 3})), setting_name);

/// The last rank has one batch, the others four.
std::vector<int> uneven_batches(const Trainer& trainer) {
  if (trainer.is_among(Who::kLastRank)) return {0};
  return {0, 1, 2, 3};
}

TEST_P(JoinFaults, ARankThatLeavesTheLoopEarlyIsNamed) {
  EXPECT_THAT(train_ranks(GetParam(),
                          [](Trainer& trainer) {
                            std::vector<int> batches = {0, 1, 2};
                            for (const int batch : trainer.engine->join(batches)) {
                              if (batch == 1 && trainer.is_among(Who::kLastRank)) break;
                              trainer.train(batch);
                            }
                            (void)parameter_hash(*trainer.engine);
                          }),
              every_rank_refuses({absl::StrCat("[join] rank ", size() - 1,
                                               " left the loop over engine->join() while")}));
}

TEST_P(JoinFaults, ALoopThatAllRanksLeaveIsOver) {
  EXPECT_THAT(train_ranks(GetParam(),
                          [](Trainer& trainer) {
                            for (int epoch = 0; epoch < 2; ++epoch) {
                              std::vector<int> batches = uneven_batches(trainer);
                              for (const int batch : trainer.engine->join(batches)) {
                                trainer.train(batch);
                                if (epoch == 0) break;
                              }
                            }
                            EXPECT_EQ(trainer.engine->steps(), 5);
                            trainer.train(5);
                          }),
              Each(is_fine()));
}

TEST_P(JoinFaults, ACallThatARankWithoutBatchesCannotFollowIsRefused) {
  EXPECT_THAT(train_ranks(GetParam(),
                          [](Trainer& trainer) {
                            std::vector<int> batches = uneven_batches(trainer);
                            for (const int batch : trainer.engine->join(batches)) {
                              trainer.train(batch);
                              (void)parameter_hash(*trainer.engine);  // at first all have batches
                            }
                          }),
              every_rank_refuses({"parameter_hash: called while rank ", "has no batches left"}));
}

TEST_P(JoinFaults, DifferentCallsAreRefused) {
  EXPECT_THAT(train_ranks(GetParam(),
                          [](Trainer& trainer) {
                            std::vector<int> batches = {0, 1};
                            for (const int batch : trainer.engine->join(batches)) {
                              trainer.backward(batch);
                              if (trainer.is_among(Who::kLastRank)) trainer.backward(batch);
                              trainer.engine->step();
                            }
                          }),
              every_rank_refuses({"calls step, others another call", "calls backward"}));
}

TEST_P(JoinFaults, ASecondLoopOverOneJoinIsRefused) {
  EXPECT_THAT(train_ranks(GetParam(),
                          [](Trainer& trainer) {
                            std::vector<int> batches = {0, 1};
                            auto joined = trainer.engine->join(batches);
                            for (const int batch : joined) trainer.train(batch);
                            for (const int batch : joined) trainer.train(batch);
                          }),
              every_rank_refuses({"[join] loop: ran a second time, expected once"}));
}

TEST_P(JoinFaults, WeightsOnSomeRanksAreRefused) {
  EXPECT_THAT(train_ranks(GetParam(),
                          [](Trainer& trainer) {
                            std::vector<int> batches = {0};
                            for (const int batch : trainer.engine->join(batches)) {
                              (void)batch;
                              const bool weighs = trainer.is_among(Who::kLastRank);
                              trainer.engine->accumulate(
                                  {}, weighs ? std::optional<double>(2.0) : std::nullopt);
                            }
                          }),
              every_rank_refuses({"accumulate: with a weight, on others it is the other way",
                                  "accumulate: without a weight"}));
}

TEST_P(JoinFaults, AllRanksThrowWhenOneEndsIfToldTo) {
  EXPECT_THAT(
      train_ranks(GetParam(),
                  [](Trainer& trainer) {
                    std::vector<int> batches = uneven_batches(trainer);
                    const JoinOptions options{.throws_when_one_ends = true};
                    for (const int batch : trainer.engine->join(batches, options)) {
                      trainer.train(batch);
                    }
                  }),
      every_rank_refuses({absl::StrCat("[join] rank ", size() - 1, " has no batches left")}));
}

TEST_P(JoinFaults, ARankThatEndsWhileOthersFollowIsNamed) {
  const auto outcomes = train_ranks(GetParam(), [](Trainer& trainer) {
    std::vector<int> batches;
    if (trainer.is_among(Who::kLastRank)) batches = {0, 1, 2};
    for (const int batch : trainer.engine->join(batches)) {
      if (batch == 2) throw std::runtime_error("out of data");
      trainer.train(batch);
    }
  });
  for (int rank = 0; rank + 1 < size(); ++rank) {
    EXPECT_THAT(outcomes[static_cast<size_t>(rank)],
                is_comm_error(absl::StrCat("rank ", size() - 1)));
  }
}

TEST_P(JoinFaults, ChangingWhatTrainsIsRefusedInside) {
  EXPECT_THAT(train_ranks(GetParam(),
                          [](Trainer& trainer) {
                            std::vector<int> batches = {0};
                            for (const int batch : trainer.engine->join(batches)) {
                              (void)batch;
                              trainer.engine->set_trainable([](std::string_view) { return true; });
                            }
                          }),
              every_rank_refuses({"set_trainable: called inside the loop over join()"}));
}

TEST(JoinOverCollectiveGathers, IsRefusedWhereParametersAreSplit) {
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3}) {
    const auto outcomes = outcomes_of_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
      const Trainer trainer(std::make_shared<GroupWithoutWindows>(std::move(world)),
                            configuration_of(strategy));
      std::vector<int> batches = uneven_batches(trainer);
      for (const int batch : trainer.engine->join(batches)) trainer.train(batch);
      EXPECT_EQ(trainer.engine->steps(), 4);
    });
    if (strategy == Strategy::kZero2) {
      EXPECT_THAT(outcomes, Each(is_fine()));
    } else {
      EXPECT_THAT(outcomes, every_rank_refuses({"join: got split parameters that ranks gather"}));
    }
  }
}

TEST(JoinOptionsOfRanks, MustBeEqual) {
  EXPECT_THAT(train_ranks({configuration_of(Strategy::kZero1), 3},
                          [](Trainer& trainer) {
                            std::vector<int> batches = {0};
                            JoinOptions options;
                            if (trainer.is_among(Who::kLastRank)) {
                              options.divide = JoinOptions::Divide::kByWorld;
                            }
                            for (const int batch : trainer.engine->join(batches, options)) {
                              trainer.train(batch);
                            }
                          }),
              every_rank_refuses({"[join] rank 2 differs from rank 0", "divided by all ranks"}));
}

TEST_P(JoinFaults, GradientsAreDroppedOnRanksThatFollow) {
  EXPECT_THAT(train_ranks(GetParam(),
                          [](Trainer& trainer) {
                            std::vector<int> batches = uneven_batches(trainer);
                            for (const int batch : trainer.engine->join(batches)) {
                              trainer.backward(batch + 7);
                              trainer.engine->zero_grad();
                              trainer.train(batch);
                            }
                            EXPECT_EQ(trainer.engine->steps(), 4);
                            (void)parameter_hash(*trainer.engine);
                          }),
              Each(is_fine()));
}

TEST_P(JoinFaults, AnErrorInAStepReachesRanksThatFollow) {
  EXPECT_THAT(train_ranks(GetParam(),
                          [](Trainer& trainer) {
                            std::vector<int> batches = uneven_batches(trainer);
                            for (const int batch : trainer.engine->join(batches)) {
                              const at::Tensor loss = trainer.loss(batch);
                              (batch == 2 ? loss * NAN : loss).backward();
                              trainer.engine->step();
                            }
                          }),
              every_rank_refuses({"[step] non-finite gradient: rank 0 produced"}));
}

}  // namespace
}  // namespace tessera::internal::testing
