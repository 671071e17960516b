#include "tessera/core/comm/meeting/time_limited_store.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/core/process/error_text.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Opened once, by the test.
struct Latch {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_open = false;

  void open() {
    const std::lock_guard lock(mutex);
    is_open = true;
    changed.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return is_open; });
  }
};

/// Blocks in check() until the latch opens.
class StuckStore : public c10d::HashStore {
 public:
  explicit StuckStore(std::shared_ptr<Latch> latch) : latch_(std::move(latch)) {}
  bool check(const std::vector<std::string>& keys) override {
    latch_->pass();
    return c10d::HashStore::check(keys);
  }

 private:
  const std::shared_ptr<Latch> latch_;
};

std::string error_of(c10d::Store& store) {
  try {
    store.check({"key"});
  } catch (const std::exception& error) {
    return error_text(error);
  }
  return "";
}

TEST(TimeLimitedStore, PassesEverythingOn) {
  const auto inner = c10::make_intrusive<c10d::HashStore>();
  TimeLimitedStore limited(inner);
  c10d::Store& store = limited;
  store.set("a", "1");
  EXPECT_EQ(inner->get("a"), std::vector<uint8_t>{'1'});
  EXPECT_EQ(store.get_to_str("a"), "1");
  EXPECT_EQ(store.add("n", 4), 4);
  EXPECT_TRUE(store.check({"a", "n"}));
  EXPECT_EQ(store.compareSet("a", "1", "2"), "2");
  EXPECT_TRUE(store.deleteKey("n"));
  store.wait({"a"});
  EXPECT_EQ(store.getNumKeys(), inner->getNumKeys());
  store.set("text", "no number");
  EXPECT_THAT(testing::message_of([&] { store.add("text", 1); }),
              AllOf(StartsWith("the c10d::HashStore that was given failed: "), HasSubstr("stoll")));
  EXPECT_TRUE(store.check({"a"}));
}

TEST(TimeLimitedStore, ACallThatHangsIsLeftBehindWithTheStore) {
  auto latch = std::make_shared<Latch>();
  {
    TimeLimitedStore store(c10::make_intrusive<StuckStore>(latch));
    store.setTimeout(std::chrono::milliseconds(30));
    EXPECT_THAT(error_of(store), HasSubstr("StuckStore that was given has not answered for 30 ms"));
    store.setTimeout(std::chrono::hours(1));
    EXPECT_THAT(error_of(store), HasSubstr("has not answered"));  // at once
  }
  latch->open();
}

TEST(TimeLimitedStore, ACallThatIsSlowIsWaitedFor) {
  auto latch = std::make_shared<Latch>();
  TimeLimitedStore store(c10::make_intrusive<StuckStore>(latch));
  store.setTimeout(std::chrono::hours(1));
  std::thread opens([&] { latch->open(); });
  EXPECT_EQ(error_of(store), "");
  opens.join();
}

}  // namespace
}  // namespace tessera::internal
