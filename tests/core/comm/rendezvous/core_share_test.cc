#include "tessera/core/comm/rendezvous/core_share.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/shm/world.h"
#include "tessera/core/process/available_cores.h"
#include "tessera/tests/core/process/variables.h"

namespace tessera::internal {
namespace {

using testing::lookup_in;
using testing::Variables;

void bind_to(int core, int pid = 0) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  EXPECT_EQ(::sched_setaffinity(pid, sizeof(cores), &cores), 0);
}

/// A process bound to one core that sleeps.
class BoundProcess {
 public:
  explicit BoundProcess(int core) : pid_(::fork()) {
    if (pid_ == 0) {
      ::pause();
      ::_exit(0);
    }
    bind_to(core, pid_);
  }
  ~BoundProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  int pid() const { return pid_; }

 private:
  const pid_t pid_;
};

TEST(CoreShare, CoresAreThoseOfAllRanks) {
  cpu_set_t own;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(own), &own), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE && cores.size() < 2; ++core) {
    if (CPU_ISSET(core, &own)) cores.push_back(core);
  }
  const BoundProcess first(cores.front()), twin(cores.front()), last(cores.back());
  const int quota = core_quota().value_or(CPU_SETSIZE);
  EXPECT_EQ(shm::World::create({first.pid(), twin.pid()})->cores(), 1);
  EXPECT_EQ(shm::World::create({first.pid(), last.pid()})->cores(),
            std::min(static_cast<int>(cores.size()), quota));
  EXPECT_EQ(shm::World::create({::getpid()})->cores(), std::min(CPU_COUNT(&own), quota));
}

TEST(CoreShare, TheShareOfTheCoresIsTakenUnlessAVariableSaysHowManyThreads) {
  const int before = at::get_num_threads();
  const auto restore = c10::make_scope_exit([before] { at::set_num_threads(before); });
  const auto threads = [](int cores, int ranks, const Variables& variables) {
    at::set_num_threads(6);
    share_cores(cores, ranks, lookup_in(variables));
    return at::get_num_threads();
  };
  EXPECT_EQ(threads(8, 2, {}), 4);
  EXPECT_EQ(threads(8, 1, {}), 6);
  EXPECT_EQ(threads(2, 3, {}), 1);
  EXPECT_EQ(threads(8, 2, {{"OMP_NUM_THREADS", ""}, {"MKL_NUM_THREADS", ""}}), 4);
  EXPECT_EQ(threads(8, 2, {{"OMP_NUM_THREADS", "6"}}), 6);
  EXPECT_EQ(threads(8, 2, {{"OMP_NUM_THREADS", ""}, {"MKL_NUM_THREADS", "6"}}), 6);

  EXPECT_EQ(threads(2, 2, {{"OMP_PROC_BIND", "close"}}), 6) << "OpenMP has counted";
  EXPECT_EQ(threads(2, 2, {{"OMP_PROC_BIND", "False"}}), 1);
}

}  // namespace
}  // namespace tessera::internal
