// The world's watcher when the process ends while the world is in use.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/core/process/ending_thread.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"
#include "tessera/tests/support/host_device.h"

namespace tessera::internal {
namespace {

using testing::HostDevice;

/// A table that notices when it is used too late.
class MortalTable final : public JobTable {
 public:
  std::atomic<int> uses{0};

  std::optional<std::string> get(const std::string& key) override {
    ++uses;
    if (const std::atomic<bool>* const opens = opens_) {
      is_held_ = true;
      while (!*opens) std::this_thread::yield();
    }
    return JobTable::get(key);
  }

  /// Blocks until a thread uses the table; that thread is held until `opens` is set.
  void hold(const std::atomic<bool>* opens) {
    opens_ = opens;
    while (!is_held_) std::this_thread::yield();
  }

 private:
  std::atomic<const std::atomic<bool>*> opens_{nullptr};
  std::atomic<bool> is_held_{false};
};

MortalTable* table_of_world = nullptr;

/// Runs when everything registered after it has ended, the world among it, and before anything made
/// before it is destroyed.
void exit_by_uses() {
  const int before = table_of_world->uses;
  // The watcher uses the table every millisecond, so this is a hundred times as long as it needs.
  const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (std::chrono::steady_clock::now() < patience && table_of_world->uses == before) {
    std::this_thread::yield();
  }
  std::_Exit(table_of_world->uses == before ? 0 : 7);
}

/// A world of one that is watched every millisecond.
std::shared_ptr<nccl::Group> make_world(const std::shared_ptr<MortalTable>& table) {
  table_of_world = table.get();
  nccl::WorldOptions options;
  options.api = testing::fake_api();
  options.device = std::make_shared<HostDevice>();
  options.table = table;
  options.table_poll = options.local_poll = std::chrono::milliseconds(1);
  auto world = nccl::make_world(std::move(options));
  world->barrier();
  return world;
}

/// Runs in its own process.
[[noreturn]] void exit_with_a_world(bool stays) {
  std::atexit(exit_by_uses);
  // Never destroyed: the process ends while it is in use.
  auto& table = *new std::shared_ptr<MortalTable>(std::make_shared<MortalTable>());
  auto* const world = new std::shared_ptr<nccl::Group>(make_world(table));
  const int before = table->uses;
  while (table->uses < before + 3) std::this_thread::yield();  // it is watched
  if (!stays) world->reset();
  std::exit(0);
}

void exit_by_cause() {
  std::_Exit(table_of_world->get("nccl/failure") == "the data ran out" ? 0 : 7);
}

/// Runs in its own process, which ends before its watcher has seen the proposal.
[[noreturn]] void exit_with_a_proposal(bool proposes) {
  std::atexit(exit_by_cause);
  // Never destroyed: the process ends while it is in use.
  auto& table = *new std::shared_ptr<MortalTable>(std::make_shared<MortalTable>());
  auto* const world = new std::shared_ptr<nccl::Group>(make_world(table));
  // Threads are asked to end in the order in which they began: the world's watcher leaves the table
  // only after it was asked.
  auto* const ends = new std::atomic<bool>(false);
  EndingThread(
      "the test",
      [ends] {
        while (!*ends) std::this_thread::yield();
      },
      [ends] { *ends = true; })
      .detach();
  table->hold(ends);
  if (proposes) (*world)->abort("the data ran out");
  std::exit(0);
}

TEST(NcclProcessEndDeathTest, ACauseThatIsProposedAtTheEndIsPublished) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_a_proposal(/*proposes=*/true), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_with_a_proposal(/*proposes=*/false), ::testing::ExitedWithCode(7), "");
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
}  // namespace tessera::internal
