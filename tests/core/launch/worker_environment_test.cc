#include "tessera/core/launch/worker_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

WorkerPlace place_of_two() {
  return {2,
          3,
          8,
          "file:///tmp/dir/store",
          "/proc/9/fd/7:3:1",
          "abc",
          "s3cret",
          {0, 1, 2, 3, 4, 5, 6, 7},
          1,
          4,
          "/tmp/dir/error.json"};
}

TEST(WorkerEnvironmentTest, SetsWhatTorchrunSets) {
  EXPECT_THAT(
      worker_environment({"PATH=/bin", "EMPTY=", "A=b=c"}, place_of_two()),
      UnorderedElementsAre(
          "PATH=/bin", "EMPTY=", "A=b=c", "RANK=2", "WORLD_SIZE=3", "LOCAL_RANK=2",
          "LOCAL_WORLD_SIZE=3", "GROUP_RANK=0", "GROUP_WORLD_SIZE=1", "ROLE_NAME=default",
          "ROLE_RANK=2", "ROLE_WORLD_SIZE=3", "TORCHELASTIC_RESTART_COUNT=1",
          "TESSERA_RESTART_COUNT=1", "TORCHELASTIC_MAX_RESTARTS=4", "TORCHELASTIC_RUN_ID=abc",
          "TORCHELASTIC_ERROR_FILE=/tmp/dir/error.json", "TORCHELASTIC_USE_AGENT_STORE=False",
          "TESSERA_STORE=file:///tmp/dir/store", "TESSERA_JOB_PAGE=/proc/9/fd/7:3:1",
          "TESSERA_JOB_TOKEN=s3cret", "OMP_NUM_THREADS=2"));
}

TEST(WorkerEnvironmentTest, ARankOfSeveralStartsNoJob) {
  EXPECT_EQ(outer_job_problem({"PATH=/bin", "RANKS=2", "WORLD_SIZE=4"}), "");
  EXPECT_EQ(outer_job_problem({"RANK=0", "WORLD_SIZE=1"}), "");
  EXPECT_EQ(outer_job_problem({"RANK=0"}), "");
  EXPECT_THAT(outer_job_problem({"RANK=0", "WORLD_SIZE=4"}),
              HasSubstr("RANK, WORLD_SIZE: got '0' and '4', expected no variables of another"));
}

TEST(WorkerEnvironmentTest, ReplacesWhatAnOuterLauncherLeft) {
  const auto environment =
      worker_environment({"RANK=7", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500",
                          "TESSERA_STORE=file:///old", "TORCHELASTIC_ERROR_FILE=/x", "RANKS=9"},
                         place_of_two());
  EXPECT_THAT(environment, Contains("RANK=2"));
  EXPECT_THAT(environment, Contains("RANKS=9"));
  for (const char* gone : {"RANK=7", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500",
                           "TESSERA_STORE=file:///old", "TORCHELASTIC_ERROR_FILE=/x"}) {
    EXPECT_THAT(environment, Not(Contains(gone)));
  }
}

TEST(WorkerEnvironmentTest, ACommandThatStartsRanksKeepsItsOwn) {
  EXPECT_THAT(supervised_environment({"PATH=/bin", "MASTER_ADDR=a", "TESSERA_RESTART_COUNT=7"},
                                     place_of_two()),
              UnorderedElementsAre("PATH=/bin", "MASTER_ADDR=a", "TORCHELASTIC_RESTART_COUNT=1",
                                   "TESSERA_RESTART_COUNT=1", "TORCHELASTIC_MAX_RESTARTS=4",
                                   "TESSERA_JOB_PAGE=/proc/9/fd/7:3:1"));
}

TEST(WorkerEnvironmentTest, TheUsersThreadCountStays) {
  const auto environment = worker_environment({"OMP_NUM_THREADS=5"}, place_of_two());
  EXPECT_THAT(environment, Contains("OMP_NUM_THREADS=5"));
  EXPECT_THAT(environment, Not(Contains("OMP_NUM_THREADS=2")));
}

TEST(WorkerEnvironmentTest, WhatIsNoThreadCountIsReplaced) {
  for (const std::string value : {"garbage", "0", "-3", "1.5"}) {
    const std::vector<std::string> inherited{"OMP_NUM_THREADS=" + value};
    EXPECT_THAT(worker_environment(inherited, place_of_two()), Contains("OMP_NUM_THREADS=2"));
    EXPECT_THAT(threads_remark(inherited, 4, 2),
                HasSubstr("'" + value + "', no number of threads; giving 2 workers 2 threads"));
  }
  EXPECT_THAT(worker_environment({"OMP_NUM_THREADS=4,2"}, place_of_two()),
              Contains("OMP_NUM_THREADS=4,2"));
  EXPECT_EQ(threads_remark({"OMP_NUM_THREADS=4,2"}, 4, 2), "");
}

TEST(WorkerEnvironmentTest, AnEmptyVariableIsNotSet) {
  const auto environment = worker_environment(
      {"OMP_NUM_THREADS=", "TESSERA_JOB_TOKEN=", "GOMP_CPU_AFFINITY="}, place_of_two());
  EXPECT_THAT(environment, Not(Contains("GOMP_CPU_AFFINITY=")));
  EXPECT_THAT(environment, Contains("OMP_NUM_THREADS=2"));
  EXPECT_THAT(environment, Contains("TESSERA_JOB_TOKEN=s3cret"));
  EXPECT_THAT(environment, Not(Contains("OMP_NUM_THREADS=")));
  EXPECT_THAT(environment, Not(Contains("TESSERA_JOB_TOKEN=")));
}

TEST(WorkerEnvironmentTest, BoundThreadsGetCoresOfTheRank) {
  const auto environment =
      worker_environment({"OMP_PROC_BIND=true", "OMP_PLACES=cores"}, place_of_two());
  EXPECT_THAT(environment, Contains("OMP_PROC_BIND=true"));
  EXPECT_THAT(environment, Contains("OMP_PLACES={4},{5}"));
  EXPECT_THAT(environment, Not(Contains("OMP_PLACES=cores")));
}

TEST(WorkerEnvironmentTest, TheValueIsThatOfTheFirstEntry) {
  EXPECT_EQ(value_of({"AB=1", "A", "A=x=y", "A=z"}, "A"), "x=y");
  EXPECT_EQ(value_of({"AB=1"}, "A"), "");
}

TEST(WorkerEnvironmentTest, TheUsersSecretStays) {
  const auto environment = worker_environment({"TESSERA_JOB_TOKEN=own"}, place_of_two());
  EXPECT_THAT(environment, Contains("TESSERA_JOB_TOKEN=own"));
  EXPECT_THAT(environment, Not(Contains("TESSERA_JOB_TOKEN=s3cret")));
}

TEST(WorkerEnvironmentTest, ThreadsAreSharedButNeverNone) {
  EXPECT_EQ(threads_per_worker(8, 1), 8);
  EXPECT_EQ(threads_per_worker(8, 3), 2);
  EXPECT_EQ(threads_per_worker(2, 5), 1);
}

}  // namespace
}  // namespace tessera::internal
