// Ranks of srun and mpirun that meet without being given a place.
#include "tessera/core/process/launcher_process.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/process_group.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::join;
using ::testing::Not;
using testing::RankProcessBody;
using testing::RankProcesses;
using testing::RankProcessOptions;
using testing::RankResult;
using testing::run_rank_processes;
using testing::say;
using testing::TemporaryDirectory;

const RankProcessBody kMeetTwice("meet_twice", [] {
  for (int i = 0; i < 2; ++i) {
    const auto world = join();
    at::Tensor one = at::ones({1});
    world->all_reduce(one, ReduceOp::kSum)->wait();
    if (one.item<float>() != static_cast<float>(world->size())) throw std::runtime_error("sum");
    say(absl::StrCat("met as ", world->rank(), " of ", world->size(), " with ",
                     at::get_num_threads(), " threads of ", world->size()));
  }
});

const RankProcessBody kSayName("say_name", [] {
  const auto environment = read_environment();
  if (!environment.ok()) throw std::runtime_error(std::string(environment.status().message()));
  say(absl::StrCat("name ", job_name(*environment).value()));
});

/// The launchers, by the variables they set. The SLURM job is unique to this test, because others
/// may run.
enum class Family { kSlurm, kOpenMpi, kMpich };

/// Variables of `size` ranks, of which the last `on_second_host` are on a second host.
RankProcessOptions launched_by(Family family, int size, int on_second_host = 0) {
  RankProcessOptions options;
  options.environment = {{"RANK", ""},
                         {"WORLD_SIZE", ""},
                         {"LOCAL_RANK", ""},
                         {"LOCAL_WORLD_SIZE", ""},
                         {"TESSERA_STORE", ""}};
  const std::string ranks = absl::StrCat(size);
  const int on_first_host = size - on_second_host;
  const std::string tasks =
      on_second_host == 0 ? ranks : absl::StrCat(on_first_host, ",", on_second_host);
  for (int rank = 0; rank < size; ++rank) {
    const std::string own = absl::StrCat(rank);
    const bool is_on_first = rank < on_first_host;
    const std::string local = absl::StrCat(is_on_first ? rank : rank - on_first_host);
    const std::string locals = absl::StrCat(is_on_first ? on_first_host : on_second_host);
    auto& variables = options.environment_of_rank[rank];
    if (family == Family::kSlurm) {
      variables = {{"SLURM_PROCID", own},
                   {"SLURM_STEP_NUM_TASKS", ranks},
                   {"SLURM_LOCALID", local},
                   {"SLURM_NODEID", is_on_first ? "0" : "1"},
                   {"SLURM_STEP_TASKS_PER_NODE", tasks},
                   {"SLURM_JOB_ID", absl::StrCat(::getpid())},
                   {"SLURM_STEP_ID", "0"}};
    } else if (family == Family::kOpenMpi) {
      variables = {{"OMPI_COMM_WORLD_RANK", own},
                   {"OMPI_COMM_WORLD_SIZE", ranks},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", local},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", locals},
                   {"PMIX_NAMESPACE", "145948673"}};
    } else {
      variables = {{"PMI_RANK", own},
                   {"PMI_SIZE", ranks},
                   {"MPI_LOCALRANKID", local},
                   {"MPI_LOCALNRANKS", locals}};
    }
  }
  return options;
}

class LaunchedJob : public ::testing::TestWithParam<Family> {};

TEST_P(LaunchedJob, RanksThatAreToldNoPlaceMeet) {
  for (const int size : {1, 3, 4}) {
    const auto results = run_rank_processes(size, "meet_twice", launched_by(GetParam(), size));
    for (int rank = 0; rank < size; ++rank) {
      const RankResult& result = results[static_cast<size_t>(rank)];
      EXPECT_EQ(result.exit_code, 0) << result.output;
      EXPECT_THAT(result.output, HasSubstr(absl::StrCat("met as ", rank, " of ", size)));
    }
  }
}

// Each rank refuses by its own variables, before it looks for the others.
TEST_P(LaunchedJob, SharedMemoryOfSeveralHostsIsRefusedByEachRank) {
  RankProcessOptions options = launched_by(GetParam(), 3, /*on_second_host=*/1);
  options.environment["TESSERA_BACKEND"] = "shm";
  // Without these mpirun's ranks would miss a place first.
  options.environment["MASTER_ADDR"] = "127.0.0.1";
  options.environment["MASTER_PORT"] = absl::StrCat(testing::free_port());
  const auto results = run_rank_processes(3, "meet_twice", options);
  for (int rank = 0; rank < 3; ++rank) {
    const RankResult& result = results[static_cast<size_t>(rank)];
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output,
                HasSubstr(absl::StrCat(
                    ": got ranks on several hosts (", rank < 2 ? 2 : 1,
                    " of 3 on this one), expected all ranks on one host, as backend 'shm' reaches "
                    "no other; start all ranks on one host, or leave the backend to 'auto', which "
                    "is 'hosts' then")));
  }
}

INSTANTIATE_TEST_SUITE_P(Launchers, LaunchedJob,
                         ::testing::Values(Family::kSlurm, Family::kOpenMpi, Family::kMpich));

TEST(LaunchedJobs, TwoJobsAtOnceDoNotMeet) {
  RankProcessOptions first = launched_by(Family::kSlurm, 3);
  RankProcessOptions second = launched_by(Family::kSlurm, 3);
  for (auto& [rank, variables] : second.environment_of_rank) variables["SLURM_STEP_ID"] = "1";
  RankProcesses a(3, "meet_twice", first), b(3, "meet_twice", second);
  for (RankProcesses* job : {&a, &b}) {
    for (const RankResult& result : job->wait()) EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

// The control: a rank of another step does not belong to this job.
TEST(LaunchedJobs, Case29ARankOfAnotherStepDoesNotCome) {
  RankProcessOptions options = launched_by(Family::kSlurm, 3);
  options.environment["TEST_TIMEOUT_MS"] = "1000";
  options.environment_of_rank[2]["SLURM_STEP_ID"] = "1";
  for (const RankResult& result : run_rank_processes(3, "meet_twice", options)) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output,
                ContainsRegex("rank 2 did not come to .*slurm-[0-9]+\\.0|slurm-[0-9]+\\.1: nobody "
                              "listens; is rank 0 on this host"));
  }
}

/// Without this check the first rank of each job could train with the other job's ranks.
TEST(LaunchedJobs, RanksOfTwoJobsAtOnePlaceDoNotMeet) {
  const TemporaryDirectory runtime;
  RankProcessOptions options = launched_by(Family::kOpenMpi, 2);
  const std::string path = absl::StrCat("file://", runtime.path(), "/store");
  const std::string address = absl::StrCat("tcp://127.0.0.1:", testing::free_port());
  for (const std::string& place : {path, address}) {
    options.environment["TESSERA_STORE"] = place;
    options.environment["TEST_TIMEOUT_MS"] = "5000";  // each must find the other within this time
    options.environment_of_rank[1]["PMIX_NAMESPACE"] = "2";
    const auto results = run_rank_processes(2, "meet_twice", options);
    for (const RankResult& result : results) EXPECT_EQ(result.exit_code, 1) << result.output;
    const std::string output = results[0].output + results[1].output;
    EXPECT_THAT(output, Not(HasSubstr("met as")));
    EXPECT_THAT(output, HasSubstr("give all ranks the same TESSERA_JOB_TOKEN, and each job a place "
                                  "of its own"));
    options.environment.erase("TEST_TIMEOUT_MS");  // these meet
    options.environment_of_rank[1]["PMIX_NAMESPACE"] =
        options.environment_of_rank[0]["PMIX_NAMESPACE"];
    for (const RankResult& result : run_rank_processes(2, "meet_twice", options)) {
      EXPECT_EQ(result.exit_code, 0) << result.output;
    }
  }
}

TEST(LaunchedJobs, Case27ARankGivenTwiceIsNamedByAll) {
  RankProcessOptions options = launched_by(Family::kOpenMpi, 3);
  options.environment_of_rank[2]["OMPI_COMM_WORLD_RANK"] = "1";
  for (const RankResult& result : run_rank_processes(3, "meet_twice", options)) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output, HasSubstr("RANK 1 was given twice, to pid "));
  }
}

TEST(LaunchedJobs, Case28WorldSizesThatDifferAreNamedByAll) {
  RankProcessOptions options = launched_by(Family::kMpich, 3);
  options.environment_of_rank[2]["PMI_SIZE"] = "4";
  options.environment_of_rank[2]["MPI_LOCALNRANKS"] = "4";
  for (const RankResult& result : run_rank_processes(3, "meet_twice", options)) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output,
                ContainsRegex("rank [0-2] has WORLD_SIZE [34] where rank [0-2] has [34]"));
  }
}

/// Returns the output of a shell command.
std::string output_of(const std::string& command) {
  std::FILE* output = ::popen(command.c_str(), "r");
  char text[16384] = {};
  const size_t count = std::fread(text, 1, sizeof(text) - 1, output);
  ::pclose(output);
  return std::string(text, count);
}

TEST(LaunchedJobs, AShellInBetweenChangesNothing) {
  const auto results = run_rank_processes(3, "say_name", launched_by(Family::kMpich, 3));
  const std::string name = results[0].output;
  EXPECT_THAT(name, HasSubstr(absl::StrCat("name mpi-", ::getpid(), "-")));
  for (const RankResult& result : results) EXPECT_EQ(result.output, name);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string start =
      absl::StrCat("env -u RANK PMI_RANK=1 PMI_SIZE=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3 sh -c '",
                   program, " --rank_body=say_name; true'");
  EXPECT_EQ(output_of("exec " + start), name);
  // The control: a shell without a rank counts as another launcher.
  const std::string other = output_of(start + "; true");
  EXPECT_THAT(other, HasSubstr("name mpi-"));
  EXPECT_NE(other, name);
}

/// MPICH does not tell its ranks a job name: the launcher differs.
TEST(LaunchedJobs, RanksOfTwoLaunchersAtOneAddressDoNotMeet) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const auto rank = [&](int number) {
    return absl::StrCat("PMI_RANK=", number, " MPI_LOCALRANKID=", number, " ", program,
                        " --rank_body=meet_twice 2>&1");
  };
  const std::string start = absl::StrCat(
      "unset RANK WORLD_SIZE; export PMI_SIZE=2 MPI_LOCALNRANKS=2 "
      "TESSERA_STORE=tcp://127.0.0.1:",
      testing::free_port(), "; ");
  // Each must find the other within the time-out; those that meet need none.
  const std::string apart = output_of(absl::StrCat(start, "export TEST_TIMEOUT_MS=5000; (", rank(0),
                                                   "; true) & (", rank(1), "; true) & wait"));
  EXPECT_THAT(apart, Not(HasSubstr("met as")));
  EXPECT_THAT(apart, HasSubstr("give all ranks the same TESSERA_JOB_TOKEN, and each job a place "
                               "of its own"));
  EXPECT_THAT(output_of(absl::StrCat(start, rank(0), " & ", rank(1), " & wait")),
              AllOf(HasSubstr("met as 0 of 2"), HasSubstr("met as 1 of 2")));
}

TEST(LaunchedJobs, TheLauncherIsTheNearestWithoutTheVariable) {
  const auto parent = find_launcher("TESSERA_NO_SUCH_VARIABLE");
  ASSERT_TRUE(parent.ok()) << parent.status();
  EXPECT_EQ(parent->pid, ::getppid());
  EXPECT_GT(parent->start_time, 0U);
}

/// mpiexec inside a rank of mpiexec: the process that starts the inner ranks has the outer rank's
/// variables.
TEST(LaunchedJobs, JobsThatARankOfAnotherHasStartedAreTold) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const auto name_under = [&](int rank) {
    return output_of(absl::StrCat("env -u RANK PMI_RANK=0 PMI_SIZE=1 sh -c 'echo $$; PMI_RANK=",
                                  rank, " PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 ", program,
                                  " --rank_body=say_name; true'"));
  };
  std::string output = name_under(1);
  std::string pid = output.substr(0, output.find('\n'));
  EXPECT_THAT(output, HasSubstr(absl::StrCat("name mpi-", pid, "-")));
  // The control: a shell with the same variables as the rank is not what started it.
  output = name_under(0);
  pid = output.substr(0, output.find('\n'));
  EXPECT_THAT(output,
              AllOf(HasSubstr("name mpi-"), Not(HasSubstr(absl::StrCat("name mpi-", pid, "-")))));
}

TEST(LaunchedJobs, CpusOfSeveralHostsTakeMpiOrAreRefusedByEachRank) {
  RankProcessOptions options = launched_by(Family::kSlurm, 3, /*on_second_host=*/1);
  options.environment["SLURM_STEP_NODELIST"] = "node[1-2]";
  options.environment["TESSERA_MPI"] = "/nowhere/libmpi.so";
  for (const RankResult& result : run_rank_processes(3, "meet_twice", options)) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output, AllOf(HasSubstr("[mpi]"), HasSubstr("/nowhere/libmpi.so")));
  }
}

TEST(LaunchedJobs, RanksSayWhoTheyAreIfTheyAreAsked) {
  RankProcessOptions options = launched_by(Family::kOpenMpi, 3);
  EXPECT_THAT(run_rank_processes(3, "meet_twice", options)[1].output,
              Not(HasSubstr("[rendezvous] rank 1 of 3")));
  options.environment["TESSERA_VERBOSE"] = "1";
  options.environment["TESSERA_JOB_TOKEN"] = "a secret";
  const std::string output = run_rank_processes(3, "meet_twice", options)[1].output;
  EXPECT_THAT(
      output,
      AllOf(HasSubstr("[rendezvous] rank 1 of 3, local rank 1 of 3, by Open MPI's "
                      "mpirun (OMPI_COMM_WORLD_RANK), job 145948673; pid "),
            HasSubstr(absl::StrCat("; ranks meet at @tessera-", ::geteuid(), "/mpi-", ::getpid())),
            Not(HasSubstr("secret"))));
}

TEST(LaunchedJobs, RanksShareTheCoresUnlessTheirNumberOfThreadsIsSet) {
  RankProcessOptions options = launched_by(Family::kMpich, 3);
  options.environment["OMP_NUM_THREADS"] = "";
  const std::string shared = run_rank_processes(3, "meet_twice", options)[0].output;
  options.environment["OMP_NUM_THREADS"] = "2";  // more threads than cores are cut
  const std::string set = run_rank_processes(3, "meet_twice", options)[0].output;
  const bool has_few_cores = ::sysconf(_SC_NPROCESSORS_ONLN) < 6;
  EXPECT_THAT(shared, HasSubstr(has_few_cores ? "with 1 threads" : "threads of 3"));
  EXPECT_THAT(set, HasSubstr("with 2 threads"));
}

}  // namespace
}  // namespace tessera::internal
