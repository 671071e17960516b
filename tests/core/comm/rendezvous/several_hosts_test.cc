// Ranks with RANK and WORLD_SIZE on several hosts. A process in its own PID namespace counts as
// another host, because it shares no memory with the others.
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/process_group.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/rank_processes.h"

namespace tessera::internal {
namespace {

using testing::free_port;
using ::testing::HasSubstr;
using testing::join;
using testing::RankProcessBody;
using testing::RankProcessOptions;
using testing::RankResult;
using testing::run_in_fork;
using testing::run_rank_processes;
using testing::say;

void meet() {
  const auto world = join();
  world->barrier("all have met");
  say("met");
}

/// The rank named by TEST_CONTAINER meets from another PID namespace.
const RankProcessBody kContainer("rank_in_a_container", [] {
  const char* const container = std::getenv("TEST_CONTAINER");
  if (container == nullptr || std::string(container) != std::getenv("RANK")) return meet();
  if (::unshare(CLONE_NEWPID) != 0) throw std::runtime_error("unshare failed");
  const pid_t child = ::fork();  // the first process of the new namespace
  if (child != 0) {
    int status = 0;
    ::waitpid(child, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  meet();
});

RankProcessOptions at_an_address() {
  RankProcessOptions options;
  options.environment = {{"TESSERA_STORE", ""},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", absl::StrCat(free_port())}};
  return options;
}

TEST(SeveralHosts, RanksOfRankAndWorldSizeAreToldToTakeMpi) {
  const auto can = run_in_fork([] { return ::unshare(CLONE_NEWPID) == 0 ? "can" : "cannot"; });
  if (can.text != "can") GTEST_SKIP() << "no PID namespaces for this user";
  for (const char* const container : {"0", "2"}) {
    RankProcessOptions options = at_an_address();
    options.environment["TEST_CONTAINER"] = container;
    for (const RankResult& result : run_rank_processes(3, "rank_in_a_container", options)) {
      EXPECT_FALSE(result.timed_out);
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_THAT(result.output,
                  HasSubstr("(another machine or PID namespace) and shares no memory with it: CPUs "
                            "of several hosts communicate by MPI; start the ranks with mpirun or "
                            "srun (TESSERA_BACKEND=mpi; "));
    }
  }
}

/// The refusal above is due to the namespace.
TEST(SeveralHosts, ControlWithoutAContainerRanksMeet) {
  for (const RankResult& result : run_rank_processes(3, "rank_in_a_container", at_an_address())) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("met"));
  }
}

}  // namespace
}  // namespace tessera::internal
