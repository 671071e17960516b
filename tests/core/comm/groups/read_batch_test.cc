#include "tessera/core/comm/groups/read_batch.h"

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;

/// A read that records how it is waited for.
class NotedRead final : public Work {
 public:
  NotedRead(std::string name, std::vector<std::string>& calls, bool fails = false)
      : name_(std::move(name)), calls_(calls), fails_(fails) {}

  bool is_completed() override { return false; }
  void wait() override {
    calls_.push_back("wait " + name_);
    if (fails_) throw std::runtime_error(name_);
  }
  bool wait_for(std::chrono::milliseconds longest) override {
    EXPECT_EQ(longest, std::chrono::milliseconds(0));
    calls_.push_back("expect " + name_);
    return false;
  }

 private:
  const std::string name_;
  std::vector<std::string>& calls_;
  const bool fails_;
};

/// Another rank of the host may wait for the last read, and extends its time-out only if this rank
/// waits for it, too.
TEST(ReadBatch, AllAreExpectedBeforeTheFirstHasCome) {
  std::vector<std::string> calls;
  ReadBatch reads;
  reads.add(std::make_shared<NotedRead>("a", calls));
  reads.add(std::make_shared<NotedRead>("b", calls));
  reads.wait();
  EXPECT_THAT(calls, ElementsAre("expect a", "expect b", "wait a", "wait b"));
  reads.wait();
  EXPECT_EQ(calls.size(), 4U) << "they are over";
}

TEST(ReadBatch, AllAreAwaitedAlthoughOneFails) {
  std::vector<std::string> calls;
  ReadBatch reads;
  reads.add(std::make_shared<NotedRead>("a", calls, /*fails=*/true));
  reads.add(std::make_shared<NotedRead>("b", calls, /*fails=*/true));
  EXPECT_EQ(testing::message_of([&] { reads.wait(); }), "a");
  EXPECT_THAT(calls, ElementsAre("expect a", "expect b", "wait a", "wait b"));
}

}  // namespace
}  // namespace tessera::internal
