#include "tessera/core/comm/handshake/heartbeat.h"

#include <string>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace tessera::internal {
namespace {

using Sign = Heartbeat::Sign;

class HeartbeatTest : public ::testing::Test {
 protected:
  void write(const std::string& count) { handshake_store_.set("tessera/beat/other", count); }

  const c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  HandshakeStore handshake_store_{*store_};
};

TEST_F(HeartbeatTest, WhatNeverCountsIsLeftOver) {
  Heartbeat heartbeat(handshake_store_);
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kNone);
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kNone);
  Heartbeat later(handshake_store_);
  write("41");  // an earlier attempt's last
  EXPECT_EQ(later.sign_of("other"), Sign::kNone);
  EXPECT_EQ(later.sign_of("other"), Sign::kNone);
}

TEST_F(HeartbeatTest, WhatCountsRuns) {
  Heartbeat heartbeat(handshake_store_);
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kNone);
  write("1");
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kRuns);
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kRuns);
}

TEST_F(HeartbeatTest, WhatStopsHasEnded) {
  Heartbeat heartbeat(handshake_store_, std::chrono::milliseconds(1));
  heartbeat.sign_of("other");
  write("1");
  heartbeat.sign_of("other");
  while (heartbeat.sign_of("other") != Sign::kStopped) {
  }
  write("2");  // it was only slow
  EXPECT_EQ(heartbeat.sign_of("other"), Sign::kRuns);
}

TEST_F(HeartbeatTest, OnesOwnIsSeen) {
  Heartbeat own(handshake_store_);
  Heartbeat other(handshake_store_);
  other.sign_of("own");
  own.beat("own");
  EXPECT_EQ(other.sign_of("own"), Sign::kRuns);
}

}  // namespace
}  // namespace tessera::internal
