#include <latch>
#include <string>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/failing_group.h"
#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"

// One rank leaves the engine's own code by an exception (out of memory, say) where all others rely
// on it: at the end of backward, before the vote, between the vote and the barrier. All ranks learn
// of it at once, even if that rank catches the exception and stays.
namespace tessera::internal::testing {
namespace {

struct Place {
  std::string op, tag;
  std::string cause;  ///< the cause on all others, without the rank
};

std::vector<Place> places(const Configuration& configuration, int size) {
  std::vector<Place> all = {
      {"all_gather", "end of backward", " left the end of backward by an exception"},
      {"all_gather", "vote of the step", " left step() by an exception"}};
  const Degrees degrees = configuration.degrees_at(size);
  if (configuration.shares_at(size) || degrees.parameters > 1) {
    all.push_back({"barrier", "parameters updated",
                   " left step() by an exception after all ranks had agreed to it"});
  } else if (degrees.optimizer > 1) {
    all.push_back({"all_gather", "bucket 0",
                   " left step() by an exception after all ranks had agreed to it"});
  }
  return all;
}

class HalfStep : public ::testing::TestWithParam<std::pair<Configuration, int>> {};

TEST_P(HalfStep, EndsTheEngineOnEveryRankAtOnce) {
  const auto& [configuration, size] = GetParam();
  for (const Place& place : places(configuration, size)) {
    for (const Who who : kOneRank) {
      SCOPED_TRACE(::testing::Message() << place.op << " '" << place.tag << "' on " << who);
      std::latch is_over(size);
      const auto outcomes = outcomes_of_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
        const auto failing = std::make_shared<FailingGroup>(std::move(world));
        Trainer trainer(failing, configuration);
        trainer.train(0);
        const bool fails = trainer.is_among(who);
        if (fails) failing->fail_in(place.op, place.tag);
        // Nobody leaves before the others know, because leaving would inform them, too.
        const Ending outcome = outcome_of([&] {
          trainer.train(1);
          trainer.train(2);  // needed if nothing followed in the first step
        });
        EXPECT_EQ(failing->has_failed(), fails);
        const std::string cause = first_of(who, size) + place.cause;
        EXPECT_THAT(outcome, fails ? is_other("std::bad_alloc") : is_comm_error(cause));
        EXPECT_THAT(outcome_of([&] { trainer.engine->step(); }), is_comm_error(cause));
        is_over.arrive_and_wait();
      });
      EXPECT_THAT(outcomes, ::testing::Each(is_fine()));
    }
  }
}

std::vector<std::pair<Configuration, int>> configurations_and_sizes() {
  std::vector<std::pair<Configuration, int>> all;
  for (const Configuration& configuration : named_and_apart_configurations()) {
    for (const int size : {2, 3}) all.emplace_back(configuration, size);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Faults, HalfStep, ::testing::ValuesIn(configurations_and_sizes()),
                         [](const auto& info) {
                           return absl::StrCat(info.param.first.name, "_", info.param.second);
                         });

}  // namespace
}  // namespace tessera::internal::testing
