#include <latch>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/failing_group.h"
#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"
#include "tessera/tests/support/same_bits.h"

// One rank leaves set_trainable() by an exception when nothing can be undone any more: all ranks
// learn of it at once and lose their engine; whole parameters keep their values.
namespace tessera::internal::testing {
namespace {

class RebuildFailure : public ::testing::TestWithParam<std::pair<Configuration, int>> {};

TEST_P(RebuildFailure, EndsTheEngineOnEveryRank) {
  const auto& [configuration, size] = GetParam();
  const bool is_split = Setting{configuration, size}.splits_parameters();
  for (const Who who : kOneRank) {
    SCOPED_TRACE(who);
    std::latch is_over(size);
    const auto outcomes = outcomes_of_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
      const auto failing = std::make_shared<FailingGroup>(std::move(world));
      Trainer trainer(failing, configuration);
      trainer.train(0);
      at::Tensor before;
      {
        const auto whole = trainer.engine->full_parameters();
        before = trainer.net->first->weight.detach().clone();
      }
      const bool fails = trainer.is_among(who);
      if (fails) failing->fail_in("all_gather", "state problems");  // in the new engine
      const auto change = [&] {
        trainer.engine->set_trainable([](std::string_view name) { return name != "scale"; });
      };
      const std::string cause = absl::StrCat(first_of(who, size), " left set_trainable");
      EXPECT_THAT(outcome_of(change), fails ? is_other("std::bad_alloc") : is_comm_error(cause));
      EXPECT_EQ(failing->has_failed(), fails);
      EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }), is_comm_error(cause));
      EXPECT_THAT(outcome_of(change), is_comm_error(cause));
      if (is_split) {
        EXPECT_THAT(outcome_of([&] { trainer.net->first->weight.sum(); }),
                    is_misuse("were split over ranks"));
      } else {
        EXPECT_TRUE(have_same_bits(trainer.net->first->weight, before));
      }
      is_over.arrive_and_wait();
    });
    EXPECT_THAT(outcomes, ::testing::Each(is_fine()));
  }
}

std::vector<std::pair<Configuration, int>> rebuilt_configurations() {
  std::vector<std::pair<Configuration, int>> all;
  for (const Configuration& configuration : named_and_apart_configurations()) {
    all.emplace_back(configuration, 3);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Faults, RebuildFailure, ::testing::ValuesIn(rebuilt_configurations()),
                         [](const auto& info) { return info.param.first.name; });

}  // namespace
}  // namespace tessera::internal::testing
