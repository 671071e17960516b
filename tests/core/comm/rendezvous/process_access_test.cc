// Ranks of one host that may not read each other's memory: noticed when they meet, not in the first
// call that reads it.
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/process/process_status.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/rank_processes.h"

namespace tessera::internal {
namespace {

using ::testing::ContainsRegex;
using testing::free_port;
using testing::join;
using testing::RankProcessBody;
using testing::RankProcesses;
using testing::RankProcessOptions;
using testing::RankResult;

constexpr uid_t kUser = 12345;

/// Drops root's rights, because root may read everything.
void become(uid_t user) {
  if (::geteuid() == 0 && ::setuid(user) != 0) throw std::runtime_error("setuid failed");
  ::prctl(PR_SET_DUMPABLE, 1);  // setuid() has cleared it
}

bool is_rank_1() { return std::string(std::getenv("RANK")) == "1"; }

const RankProcessBody kClosed("rank_1_closes_its_memory", [] {
  become(kUser);
  if (is_rank_1()) ::prctl(PR_SET_DUMPABLE, 0);
  join();
});

const RankProcessBody kUsers("ranks_of_two_users", [] {
  become(is_rank_1() ? kUser : kUser + 1);
  join();
});

const RankProcessBody kOneUser("ranks_of_one_user", [] {
  become(kUser);
  join()->barrier();
});

/// They meet at an address that requires a token, not a user.
std::vector<RankResult> run(int ranks, const std::string& body) {
  RankProcessOptions options;
  options.environment = {{"TESSERA_STORE", absl::StrCat("tcp://127.0.0.1:", free_port())},
                         {"TESSERA_JOB_TOKEN", "0123456789abcdef"}};
  return RankProcesses(ranks, body, options).wait();
}

TEST(ProcessAccess, OneUsersRanksMeet) {
  for (const auto& result : run(3, "ranks_of_one_user")) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(ProcessAccess, ARankThatIsClosedToItsUserIsNamed) {
  for (const auto& result : run(3, "rank_1_closes_its_memory")) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output, ContainsRegex("memory of rank 1 \\(pid [0-9]+.*\\): it is closed to "
                                             "this process .*chmod \\+r"));
  }
}

TEST(ProcessAccess, RanksOfTwoUsersAreTold) {
  if (::geteuid() != 0) GTEST_SKIP() << "not run: only root may start ranks of two users";
  for (const auto& result : run(2, "ranks_of_two_users")) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output,
                ContainsRegex("it is closed to this process .*: start all ranks as one "
                              "user"));
  }
}

TEST(ProcessAccess, OneselfAndThoseWhoHaveEndedAreNoProblem) {
  EXPECT_EQ(access_problem(::getpid()), "");
  constexpr int kNobody = 1 << 22;  // above the largest pid
  EXPECT_EQ(access_problem(kNobody + 1), "");
}

}  // namespace
}  // namespace tessera::internal
