// Coroutines that wait for conditions and for Works.
#include "tessera/core/comm/hosts/collective_task.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/message_of.h"

namespace tessera::internal::hosts {
namespace {

using internal::testing::message_of;
using ::testing::ElementsAre;

class OpenWork final : public Work {
 public:
  bool is_completed() override { return is_over; }
  void wait() override {
    if (!error.empty()) throw std::runtime_error(error);
  }
  bool is_over = false;
  std::string error;
};

CollectiveTask in_turn(std::vector<int>& done, std::shared_ptr<OpenWork> first,
                       const bool& is_last) {
  done.push_back(1);
  co_await first;
  done.push_back(2);
  co_yield CollectiveTask::Given();
  co_await [&is_last] { return is_last; };
  done.push_back(3);
}

TEST(CollectiveTask, GoesOnWhenWhatItWaitsForIsThere) {
  std::vector<int> done;
  const auto first = std::make_shared<OpenWork>();
  bool is_last = false;
  CollectiveTask task = in_turn(done, first, is_last);
  EXPECT_THAT(done, ElementsAre());
  EXPECT_FALSE(task.go_on());
  EXPECT_FALSE(task.go_on());
  EXPECT_THAT(done, ElementsAre(1));
  EXPECT_FALSE(task.has_given());
  first->is_over = true;
  EXPECT_FALSE(task.go_on());
  EXPECT_THAT(done, ElementsAre(1, 2));
  EXPECT_TRUE(task.has_given());
  is_last = true;
  EXPECT_TRUE(task.go_on());
  EXPECT_TRUE(task.go_on());
  EXPECT_THAT(done, ElementsAre(1, 2, 3));
}

TEST(CollectiveTask, ThrowsWhatItsWorkHasFailedWith) {
  std::vector<int> done;
  const auto first = std::make_shared<OpenWork>();
  const bool is_last = true;
  CollectiveTask task = in_turn(done, first, is_last);
  EXPECT_FALSE(task.go_on());
  first->error = "it has failed";
  first->is_over = true;
  EXPECT_EQ(message_of([&] { task.go_on(); }), "it has failed");
  EXPECT_THAT(done, ElementsAre(1));
}

TEST(CollectiveTask, LetsGoOfWhatItHoldsWhenItIsGivenUp) {
  std::vector<int> done;
  const auto first = std::make_shared<OpenWork>();
  const bool is_last = true;
  {
    CollectiveTask task = in_turn(done, first, is_last);
    EXPECT_FALSE(task.go_on());
    EXPECT_GT(first.use_count(), 1);
  }
  EXPECT_EQ(first.use_count(), 1);
}

TEST(CollectiveTask, OfNothingIsOver) {
  CollectiveTask none;
  EXPECT_TRUE(none.has_given());
  EXPECT_TRUE(none.go_on());
}

}  // namespace
}  // namespace tessera::internal::hosts
