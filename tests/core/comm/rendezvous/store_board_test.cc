#include "tessera/core/comm/rendezvous/store_board.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline after(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

/// Blocks in check() until the latch opens, or throws.
class BadStore final : public c10d::HashStore {
 public:
  explicit BadStore(std::shared_ptr<std::atomic<bool>> latch) : latch_(std::move(latch)) {}
  bool check(const std::vector<std::string>& keys) override {
    if (latch_ == nullptr) throw std::runtime_error("the disk is full");
    while (!latch_->load()) std::this_thread::yield();
    return c10d::HashStore::check(keys);
  }

 private:
  const std::shared_ptr<std::atomic<bool>> latch_;
};

TEST(StoreBoard, ShowsWhatWasPutThere) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto one = board_of(store);
  const auto other = board_of(store);
  EXPECT_EQ(other->look(after(std::chrono::hours(1))).value(), std::nullopt);
  EXPECT_TRUE(one->put("text", after(std::chrono::hours(1))).ok());
  EXPECT_EQ(other->look(after(std::chrono::hours(1))).value(), "text");
}

TEST(StoreBoard, ACallThatHangsIsLeftBehindWithTheStore) {
  const auto latch = std::make_shared<std::atomic<bool>>(false);
  {
    const auto board = board_of(c10::make_intrusive<BadStore>(latch));
    const auto text = board->look(after(std::chrono::milliseconds(30)));
    EXPECT_TRUE(absl::IsDeadlineExceeded(text.status()));
    EXPECT_THAT(std::string(text.status().message()),
                AllOf(HasSubstr("BadStore that was given"), HasSubstr("has not answered")));
  }
  latch->store(true);
}

TEST(StoreBoard, WhatAStoreThrowsIsTold) {
  const auto text =
      board_of(c10::make_intrusive<BadStore>(nullptr))->look(after(std::chrono::hours(1)));
  EXPECT_TRUE(absl::IsFailedPrecondition(text.status()));
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("failed: the disk is full"));
}

}  // namespace
}  // namespace tessera::internal
