#include "tessera/core/launch/thread_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/available_cores.h"
#include "tessera/tests/tools/launched_job.h"

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

const std::vector<int> kAllowed = {0, 1, 4, 5, 6};

void expect_untouched(const std::vector<std::string>& inherited, int ranks = 2) {
  const ThreadBinding binding = thread_binding(inherited, 0, ranks, kAllowed);
  EXPECT_THAT(binding.variables, IsEmpty());
  EXPECT_EQ(binding.remark, "");
}

TEST(ThreadBindingTest, EachRankGetsCoresOfItsOwn) {
  for (const char* bind : {"OMP_PROC_BIND=true", "OMP_PROC_BIND=spread", "OMP_PROC_BIND=CLOSE",
                           "OMP_PROC_BIND=spread,close", "OMP_PLACES=cores"}) {
    const ThreadBinding first = thread_binding({"A=b", bind}, 0, 2, kAllowed);
    const ThreadBinding second = thread_binding({"A=b", bind}, 1, 2, kAllowed);
    EXPECT_THAT(first.variables, ElementsAre(Pair("OMP_PLACES", "{0},{1}"))) << bind;
    EXPECT_THAT(second.variables, ElementsAre(Pair("OMP_PLACES", "{4},{5}"))) << bind;
    EXPECT_THAT(first.remark, HasSubstr("is set; giving each of 2 workers 2 cores of its own"));
  }
  EXPECT_THAT(
      thread_binding({"OMP_PROC_BIND=close", "OMP_PLACES=threads(4)"}, 2, 5, kAllowed).variables,
      ElementsAre(Pair("OMP_PLACES", "{4}")));
}

TEST(ThreadBindingTest, NothingIsBoundWhereRanksShareCores) {
  for (const char* bind : {"OMP_PROC_BIND=true", "OMP_PLACES=sockets"}) {
    const ThreadBinding binding = thread_binding({bind}, 3, 6, kAllowed);
    EXPECT_THAT(binding.variables, ElementsAre(Pair("OMP_PROC_BIND", "false")));
    EXPECT_THAT(binding.remark, HasSubstr("6 workers have 5 cores: their threads are not bound"));
  }
}

TEST(ThreadBindingTest, AListOfTheUsersStaysAndIsRemarkedOn) {
  for (const char* list : {"OMP_PLACES={0:2},{4:2}", "GOMP_CPU_AFFINITY=0-3",
                           "KMP_AFFINITY=granularity=fine,proclist=[0,1],explicit"}) {
    for (const char* bind : {"OMP_PROC_BIND=true", "OTHER=1"}) {
      const ThreadBinding binding = thread_binding({list, bind}, 1, 2, kAllowed);
      EXPECT_THAT(binding.variables, IsEmpty());
      const std::string name = std::string(list).substr(0, std::string(list).find('='));
      EXPECT_THAT(binding.remark, HasSubstr(name + " is set, by which all 2 workers may bind"));
    }
    expect_untouched({list, "OMP_PROC_BIND=false"});
  }
}

TEST(ThreadBindingTest, WhoAsksForNoneIsLeftAlone) {
  expect_untouched({});
  expect_untouched({"OMP_PROC_BIND=", "OMP_PLACES=", "GOMP_CPU_AFFINITY=", "KMP_AFFINITY="});
  expect_untouched({"OMP_PROC_BIND=FALSE", "OMP_PLACES=cores"});
  expect_untouched({"KMP_AFFINITY=verbose,none"});
  expect_untouched({"OMP_PROC_BIND=true"}, 1);
}

TEST(ThreadBindingTest, WorkersGetItAndTheUserIsToldOnce) {
  const std::vector<int> cores = cores_of();
  LaunchedJob job({"--nproc-per-node", "auto", "/bin/sh", "-c", "echo places $OMP_PLACES"},
                  {{"OMP_PROC_BIND", "true"}, {"OMP_PLACES", ""}});
  EXPECT_EQ(job.wait(), 0);
  if (available_cores() == 1) {
    EXPECT_EQ(job.out(), "[0] places\n");
    return;
  }
  EXPECT_THAT(job.out(), HasSubstr(absl::StrCat("[0] places {", cores.front(), "}")));
  EXPECT_EQ(job.err().find("OMP_PROC_BIND is set"), job.err().rfind("OMP_PROC_BIND is set"));
  EXPECT_THAT(job.err(), HasSubstr("OMP_PROC_BIND is set; giving each of "));
}

TEST(ThreadBindingTest, AnEmptyNumberOfThreadsIsNone) {
  LaunchedJob job({"/bin/sh", "-c", "echo threads=$OMP_NUM_THREADS"}, {},
                  "export OMP_NUM_THREADS=");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), absl::StrCat("[0] threads=", available_cores(), "\n"));
  EXPECT_THAT(job.err(), HasSubstr("OMP_NUM_THREADS is not set; giving 1 worker "));
}

}  // namespace
}  // namespace tessera::internal
