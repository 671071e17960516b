// What watches a world when the process ends while the world is in use.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/core/device/host_device.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"

namespace tessera {
namespace {

/// A store that knows when it must no longer be used.
class MortalStore final : public c10d::HashStore {
 public:
  std::atomic<int> uses{0};

  bool check(const std::vector<std::string>& keys) override {
    ++uses;
    return c10d::HashStore::check(keys);
  }
};

MortalStore* store_of_world = nullptr;

/// Runs when everything that was registered after it is over, the world among it, and before
/// anything that was made before it is destroyed.
void exit_by_uses() {
  const int before = store_of_world->uses;
  // The watcher looks every millisecond, so this is a hundred times as long as it needs.
  const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (std::chrono::steady_clock::now() < patience && store_of_world->uses == before) {
    std::this_thread::yield();
  }
  std::_Exit(store_of_world->uses == before ? 0 : 7);
}

/// In a process of its own.
[[noreturn]] void exit_with_a_world(bool stays) {
  std::atexit(exit_by_uses);
  auto store = c10::make_intrusive<MortalStore>();
  store_of_world = store.get();
  nccl::WorldOptions options;
  options.api = testing::fake_api();
  options.device = std::make_shared<HostDevice>();
  options.store = store;
  options.store_poll = options.local_poll = std::chrono::milliseconds(1);
  auto* const world = new std::shared_ptr<nccl::Group>(nccl::make_world(std::move(options)));
  (*world)->barrier();
  const int before = store->uses;
  while (store->uses < before + 3) std::this_thread::yield();  // it is watched
  if (!stays) world->reset();
  store.release();
  std::exit(0);
}

TEST(NcclProcessEndDeathTest, NobodyWatchesAWorldThatIsInUse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_a_world(/*stays=*/true), ::testing::ExitedWithCode(0), "");
}

TEST(NcclProcessEndDeathTest, NobodyWatchesAWorldThatHasJustGone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_a_world(/*stays=*/false), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tessera
