#include "tessera/core/comm/rendezvous/store_place.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
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

std::unique_ptr<StorePlace> place_by(StorePlace::Store store) {
  return std::make_unique<StorePlace>(
      std::move(store),
      StorePlace::Options{.text = "", .credentials = {}, .is_one_host = true, .key = "note"});
}

TEST(StorePlace, ACallThatHangsIsLeftBehindWithTheStore) {
  const auto latch = std::make_shared<std::atomic<bool>>(false);
  {
    const auto place = place_by(c10::make_intrusive<BadStore>(latch));
    const auto socket = place->connect(after(std::chrono::milliseconds(30)));
    EXPECT_TRUE(absl::IsDeadlineExceeded(socket.status()));
    EXPECT_THAT(std::string(socket.status().message()),
                AllOf(HasSubstr("BadStore that was given"), HasSubstr("has not answered")));
  }
  latch->store(true);
}

TEST(StorePlace, WhatAStoreThrowsIsTold) {
  const auto place = place_by(c10::make_intrusive<BadStore>(nullptr));
  const auto socket = place->connect(after(std::chrono::hours(1)));
  EXPECT_TRUE(absl::IsFailedPrecondition(socket.status()));
  EXPECT_THAT(std::string(socket.status().message()), HasSubstr("failed: the disk is full"));
}

}  // namespace
}  // namespace tessera::internal
