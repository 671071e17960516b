#include "tessera/core/comm/handshake/heartbeat.h"

#include <string>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace tessera::internal {
namespace {

using Sign = Heartbeat::Sign;

class HeartbeatTest : public ::testing::Test {
 protected:
  void say(const std::string& count) { words_.say("tessera/beat/other", count); }

  const c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  Words words_{*store_};
};

TEST_F(HeartbeatTest, WhatNeverCountsIsLeftOver) {
  Heartbeat heartbeat(words_);
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kNone);
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kNone);
  Heartbeat later(words_);
  say("41");  // an earlier attempt's last
  EXPECT_EQ(later.sign_of("other"), Sign::kNone);
  EXPECT_EQ(later.sign_of("other"), Sign::kNone);
}

TEST_F(HeartbeatTest, WhatCountsRuns) {
  Heartbeat heartbeat(words_);
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kNone);
  say("1");
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kRuns);
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kRuns);
}

TEST_F(HeartbeatTest, WhatStopsHasEnded) {
  Heartbeat heartbeat(words_, std::chrono::milliseconds(1));
  heartbeat.sign_of("other");
  say("1");
  heartbeat.sign_of("other");
  while (heartbeat.sign_of("other") != Sign::kStopped) {
  }
  say("2");  // it was only slow
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kRuns);
}

TEST_F(HeartbeatTest, OnesOwnIsHeard) {
  Heartbeat own(words_);
  Heartbeat other(words_);
  other.sign_of("own");
  own.beat("own");
  EXPECT_EQ(other.sign_of("own"), Sign::kRuns);
}

}  // namespace
}  // namespace tessera::internal
