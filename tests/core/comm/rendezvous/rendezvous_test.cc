#include "tessera/rendezvous.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/shm/world.h"

namespace tessera::internal {
namespace {

TEST(Rendezvous, TheStoreMayGoAsSoonAsOneRankIsThrough) {
  // A FileStore that is closed after its directory went retries for minutes.
  for (const int size : {2, 3}) {
    char directory[] = "/tmp/tessera-rendezvous-XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    const std::string url = absl::StrCat("file://", directory, "/store");
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto world = init_process_group({.rank = rank,
                                               .world_size = size,
                                               .store_url = url,
                                               .timeout = std::chrono::seconds(30)});
        if (rank == size - 1) std::filesystem::remove_all(directory);
        world->barrier();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_FALSE(std::filesystem::exists(directory)) << "a store was written after init";
  }
}

/// A process that sleeps, bound to one core.
class BoundProcess {
 public:
  explicit BoundProcess(int core) : pid_(::fork()) {
    if (pid_ == 0) {
      ::pause();
      ::_exit(0);
    }
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    EXPECT_EQ(::sched_setaffinity(pid_, sizeof(cores), &cores), 0);
  }
  ~BoundProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  int pid() const { return pid_; }

 private:
  const pid_t pid_;
};

TEST(Rendezvous, CoresAreThoseOfAllRanks) {
  cpu_set_t own;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(own), &own), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE && cores.size() < 2; ++core) {
    if (CPU_ISSET(core, &own)) cores.push_back(core);
  }
  const BoundProcess first(cores.front()), twin(cores.front()), last(cores.back());
  EXPECT_EQ(shm::World::create({first.pid(), twin.pid()})->cores(), 1);
  EXPECT_EQ(shm::World::create({first.pid(), last.pid()})->cores(), static_cast<int>(cores.size()));
  EXPECT_EQ(shm::World::create({::getpid()})->cores(), CPU_COUNT(&own));
}

}  // namespace
}  // namespace tessera::internal
