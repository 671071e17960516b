// Who a process is by the variables of each launcher: as recorded under real ones, and broken in
// each way. Numbers of cases are those of docs/testing.md.
#include "tessera/core/process/launchers.h"

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/process/variables.h"

namespace tessera::internal {
namespace testing {

Variables recorded(const std::string& name) {
  std::ifstream file(absl::StrCat(TESSERA_RECORDED_ENVIRONMENTS, "/", name, ".env"));
  Variables variables;
  std::string line;
  std::getline(file, line);
  if (line.substr(0, 2) != "# ") throw std::runtime_error("no record of " + name);
  while (std::getline(file, line)) {
    const size_t equals = line.find('=');
    variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return variables;
}

}  // namespace testing

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::lookup_in;
using testing::problems;
using testing::recorded;
using testing::Variables;

/// As recorded; or as its manual says, of a launcher that could not be.
Variables variables_under(const std::string& launcher) {
  if (launcher == "mvapich") {
    return {{"MV2_COMM_WORLD_RANK", "2"},
            {"MV2_COMM_WORLD_SIZE", "4"},
            {"MV2_COMM_WORLD_LOCAL_RANK", "2"},
            {"MV2_COMM_WORLD_LOCAL_SIZE", "4"}};
  }
  if (launcher == "intel_mpi") {
    return {{"I_MPI_MPIRUN", "mpirun"}, {"PMI_FD", "9"},          {"PMI_RANK", "2"},
            {"PMI_SIZE", "4"},          {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}};
  }
  return recorded(launcher);
}

struct ExpectedIdentity {
  const char* record;
  int rank, world_size, local_rank, local_world_size;
  const char* rank_variable;
  const char* host_of_rank_0 = "";
};

void PrintTo(const ExpectedIdentity& expected, std::ostream* out) { *out << expected.record; }

Environment identity_of(const Variables& variables) {
  const auto environment = read_environment(lookup_in(variables), {.store = false});
  EXPECT_TRUE(environment.ok()) << environment.status();
  return environment.value_or(Environment());
}

class Case34Recorded : public ::testing::TestWithParam<ExpectedIdentity> {};

TEST_P(Case34Recorded, SaysWhoTheProcessIs) {
  const ExpectedIdentity& expected = GetParam();
  const Environment environment = identity_of(variables_under(expected.record));
  EXPECT_EQ(environment.rank, expected.rank);
  EXPECT_EQ(environment.world_size, expected.world_size);
  EXPECT_EQ(environment.local_rank, expected.local_rank);
  EXPECT_EQ(environment.local_world_size, expected.local_world_size);
  EXPECT_EQ(environment.rank_variable, expected.rank_variable);
  EXPECT_EQ(environment.host_of_rank_0, expected.host_of_rank_0);
}

INSTANTIATE_TEST_SUITE_P(
    Launchers, Case34Recorded,
    ::testing::Values(ExpectedIdentity{"tessera_run", 2, 4, 2, 4, "RANK"},
                      ExpectedIdentity{"torchrun", 2, 4, 2, 4, "RANK", "localhost"},
                      ExpectedIdentity{"srun_torchrun", 3, 4, 1, 2, "RANK", "localhost"},
                      ExpectedIdentity{"pytorchjob_master", 0, 3, 0, 1, "RANK", "train-master-0"},
                      ExpectedIdentity{"pytorchjob_worker", 2, 3, 0, 1, "RANK", "train-master-0"},
                      ExpectedIdentity{"srun", 2, 4, 2, 4, "SLURM_PROCID", "node08"},
                      ExpectedIdentity{"srun_pmi2", 2, 4, 2, 4, "SLURM_PROCID", "node08"},
                      ExpectedIdentity{"srun_three_nodes", 5, 7, 1, 2, "SLURM_PROCID", "node08"},
                      ExpectedIdentity{"openmpi", 2, 4, 2, 4, "OMPI_COMM_WORLD_RANK"},
                      ExpectedIdentity{"srun_openmpi", 2, 4, 2, 4, "OMPI_COMM_WORLD_RANK"},
                      ExpectedIdentity{"batch_openmpi", 2, 4, 2, 4, "OMPI_COMM_WORLD_RANK"},
                      ExpectedIdentity{"mpich", 2, 4, 2, 4, "PMI_RANK"},
                      ExpectedIdentity{"batch_mpich", 2, 4, 2, 4, "PMI_RANK"},
                      ExpectedIdentity{"batch_mpich_two_nodes", 2, 4, 2, 3, "PMI_RANK"},
                      ExpectedIdentity{"intel_mpi", 2, 4, 2, 4, "PMI_RANK"},
                      ExpectedIdentity{"mvapich", 2, 4, 2, 4, "MV2_COMM_WORLD_RANK"}));

TEST(Case34, ASignOfSeveralProcessesIsNoWorldOfOne) {
  const std::string unset = "[environment] RANK, WORLD_SIZE: not set, although ";
  for (const char* record : {"batch", "salloc"}) {
    EXPECT_THAT(problems(recorded(record)),
                AllOf(HasSubstr(unset + "SLURM_NTASKS is '4'; start the program by srun"),
                      HasSubstr("TESSERA_WORLD=single")));
  }
  EXPECT_THAT(problems(recorded("salloc_nodes")), HasSubstr("SLURM_JOB_NUM_NODES is '2'"));
  EXPECT_THAT(problems(recorded("pytorchjob_elastic")),
              AllOf(HasSubstr(unset + "PET_RDZV_ENDPOINT is"), HasSubstr("torchrun --no-python")));
  EXPECT_EQ(problems({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "1"}, {"SLURM_NNODES", "1"}}), "");
  EXPECT_THAT(problems({{"SLURM_NTASKS", "4x"}}), HasSubstr("SLURM_NTASKS is '4x'"));
  EXPECT_THAT(problems({{"SLURM_NPROCS", "4"}}), HasSubstr("SLURM_NPROCS is '4'"));
  EXPECT_THAT(problems({{"SLURM_PROCID", "2"}, {"SLURM_LOCALID", "2"}, {"SLURM_NODEID", "0"}}),
              HasSubstr("SLURM_STEP_NUM_TASKS"));
}

// These alone say no number of processes: any rank, also 0, may be one of several.
TEST(Case34, ARankThatIsOneOfAnUnknownNumberIsNoWorldOfOne) {
  for (const char* name : {"PMIX_RANK", "PMI_ID", "PALS_RANKID", "JSM_NAMESPACE_RANK"}) {
    for (const char* rank : {"0", "2"}) {
      EXPECT_THAT(
          problems({{name, rank}}),
          AllOf(HasSubstr(absl::StrCat("WORLD_SIZE: not set, although ", name, " is '", rank)),
                HasSubstr("TESSERA_WORLD=single")));
    }
  }
  EXPECT_EQ(problems({{"PMIX_RANK", "0"}, {"TESSERA_WORLD", "single"}}), "");
  Variables set = {{"PMIX_RANK", "0"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}};
  EXPECT_EQ(problems(set), "") << "by hand";
  for (const std::string name : {"PMIX_RANK", "PMI_RANK"}) {
    set[name] = "1";
    EXPECT_THAT(problems(set), HasSubstr("RANK says rank 0 of 1, but " + name +
                                         " says rank 1 of an unknown number"));
    set[name] = "0";
  }
  set["TORCHELASTIC_RUN_ID"] = "a launcher's";
  EXPECT_THAT(problems(set), HasSubstr("rank 0 of 1, but PMI_RANK says rank 0"));
  set.erase("PMI_RANK");
  EXPECT_THAT(problems(set), HasSubstr("rank 0 of 1, but PMIX_RANK says rank 0"));
  Variables without = recorded("openmpi");
  without.erase("PMIX_RANK");
  EXPECT_EQ(problems(without), "") << "mpirun's own are enough";
}

TEST(Case34, TesseraWorldSingleIsOne) {
  for (const char* record : {"batch", "salloc", "srun", "openmpi", "mpich", "pytorchjob_elastic"}) {
    Variables variables = recorded(record);
    variables["TESSERA_WORLD"] = "single";
    EXPECT_EQ(problems(variables), "") << record;
    EXPECT_EQ(identity_of(variables).world_size, 1) << record;
  }
  for (const char* value : {"", "Single", "1", "several"}) {
    EXPECT_THAT(problems({{"TESSERA_WORLD", value}}),
                HasSubstr(absl::StrCat("TESSERA_WORLD: got '", value, "', expected 'single'")));
  }
  Variables torchrun = recorded("torchrun");
  torchrun["TESSERA_WORLD"] = "single";
  EXPECT_THAT(problems(torchrun),
              HasSubstr("TESSERA_WORLD: got 'single', expected 'single', and a WORLD_SIZE of 1"));
}

/// A launcher's variables, which of them its processes cannot do without, and its rank and size.
struct LauncherVariables {
  const char* record;
  std::vector<const char*> names;
  const char* rank;
  const char* size;
};

void PrintTo(const LauncherVariables& set, std::ostream* out) { *out << set.record; }

class Cases25And26Broken : public ::testing::TestWithParam<LauncherVariables> {};

TEST_P(Cases25And26Broken, EachVariableMissingIsNamed) {
  for (const char* name : GetParam().names) {
    Variables variables = variables_under(GetParam().record);
    ASSERT_EQ(variables.erase(name), 1U) << name;
    EXPECT_THAT(problems(variables), AllOf(HasSubstr(name), HasSubstr(": not set, although ")))
        << name;
  }
}

TEST_P(Cases25And26Broken, AllThatAreMissingAreListed) {
  Variables variables = variables_under(GetParam().record);
  variables.erase("LOCAL_RANK");  // not needed by hand
  variables.erase("LOCAL_WORLD_SIZE");
  for (const char* name : GetParam().names) {
    if (std::string(name) != GetParam().size) variables.erase(name);
  }
  for (const char* name : GetParam().names) {
    if (absl::StartsWith(name, "LOCAL_")) continue;
    EXPECT_THAT(problems(variables), HasSubstr(name));
  }
}

TEST_P(Cases25And26Broken, EachNumberThatIsNoneIsNamedWithItsValue) {
  const LauncherVariables& set = GetParam();
  for (const char* name : {set.rank, set.size}) {
    for (const char* value : {"", " 1", "1 ", "1x", "-1", "+1", "0x1", "1.0", "2147483648"}) {
      Variables variables = variables_under(set.record);
      variables[name] = value;
      EXPECT_THAT(problems(variables), HasSubstr(absl::StrCat("[environment] ", name, ": got '",
                                                              value, "', expected an integer")));
    }
  }
  Variables variables = variables_under(set.record);
  const std::string size = variables[set.rank] = variables[set.size];
  EXPECT_THAT(problems(variables),
              AllOf(HasSubstr(absl::StrCat(set.rank, ": got '", size, "', expected an integer")),
                    HasSubstr(absl::StrCat(" (", set.size, " is ", size, ")"))));
  variables[set.size] = "0";
  EXPECT_THAT(problems(variables), HasSubstr(absl::StrCat(set.size, ": got '0'")));
}

const std::vector<const char*> kHydra = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                                         "MPI_LOCALNRANKS"};

INSTANTIATE_TEST_SUITE_P(
    Launchers, Cases25And26Broken,
    ::testing::Values(LauncherVariables{"srun",
                                        {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
                                         "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"},
                                        "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS"},
                      LauncherVariables{
                          "openmpi",
                          {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                          "OMPI_COMM_WORLD_RANK",
                          "OMPI_COMM_WORLD_SIZE"},
                      LauncherVariables{"mpich", kHydra, "PMI_RANK", "PMI_SIZE"},
                      LauncherVariables{"intel_mpi", kHydra, "PMI_RANK", "PMI_SIZE"},
                      LauncherVariables{"mvapich",
                                        {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                                         "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
                                        "MV2_COMM_WORLD_RANK",
                                        "MV2_COMM_WORLD_SIZE"},
                      LauncherVariables{"torchrun",
                                        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                         "MASTER_ADDR", "MASTER_PORT"},
                                        "RANK",
                                        "WORLD_SIZE"},
                      LauncherVariables{"pytorchjob_worker",
                                        {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
                                        "RANK",
                                        "WORLD_SIZE"}));

/// Rank and number of the processes of this host, of a rank and size of all.
struct LocalVariables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* world_size;
};

void PrintTo(const LocalVariables& set, std::ostream* out) { *out << set.launcher; }

class Case26Local : public ::testing::TestWithParam<LocalVariables> {};

TEST_P(Case26Local, ANumberThatDoesNotFitIsNamedWithItsValue) {
  const LocalVariables& set = GetParam();
  const Variables good = variables_under(set.launcher);
  ASSERT_EQ(problems(good), "");
  for (const char* name : {set.rank, set.size}) {
    for (const char* value : {"", " 1", "1x", "-1", "2147483648"}) {
      Variables variables = good;
      variables[name] = value;
      EXPECT_THAT(problems(variables), HasSubstr(absl::StrCat("[environment] ", name, ": got '",
                                                              value, "', expected an integer")));
    }
  }
  Variables variables = good;
  variables[set.rank] = "4";
  EXPECT_THAT(problems(variables),
              HasSubstr(absl::StrCat(set.rank, ": got '4', expected an integer from 0 to 3 (",
                                     set.size, " is 4)")));
  variables = good;
  variables[set.size] = "5";
  EXPECT_THAT(problems(variables),
              HasSubstr(absl::StrCat(set.size, ": got '5', expected an integer from 1 to 4 (",
                                     set.world_size, " is 4)")));
}

INSTANTIATE_TEST_SUITE_P(
    Launchers, Case26Local,
    ::testing::Values(LocalVariables{"torchrun", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"},
                      LocalVariables{"openmpi", "OMPI_COMM_WORLD_LOCAL_RANK",
                                     "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"},
                      LocalVariables{"mvapich", "MV2_COMM_WORLD_LOCAL_RANK",
                                     "MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_SIZE"},
                      LocalVariables{"mpich", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_SIZE"},
                      LocalVariables{"intel_mpi", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
                                     "PMI_SIZE"}));

TEST(Case25, WithoutLocalVariablesNobodyGuesses) {
  Variables variables = recorded("mpich");
  variables.erase("MPI_LOCALRANKID");
  variables.erase("MPI_LOCALNRANKS");
  EXPECT_THAT(problems(variables),
              HasSubstr("MPI_LOCALRANKID, MPI_LOCALNRANKS: not set, although PMI_RANK is"));
}

TEST(Case26, BadListsOfTasksAreNamed) {
  for (const char* list : {"", "4,", "4(x2", "4(2)", "x", "0", "4(x0)", "-4", "3"}) {
    Variables variables = recorded("srun");
    variables["SLURM_STEP_TASKS_PER_NODE"] = list;
    const bool is_short = std::string(list) == "3";  // rank 2 of 3, where there are 4
    variables["SLURM_LOCALID"] = is_short ? "3" : "2";
    EXPECT_THAT(problems(variables),
                HasSubstr(is_short ? "SLURM_LOCALID: got '3', expected an integer from 0 to 2"
                                   : "SLURM_STEP_TASKS_PER_NODE: got '"))
        << list;
  }
}

TEST(Case34, LaunchersThatDisagreeAreBothNamed) {
  Variables both = recorded("openmpi");
  for (const auto& [name, value] : recorded("srun")) both[name] = value;
  EXPECT_EQ(problems(both), "") << "rank 2 of 4, both say";
  both["OMPI_COMM_WORLD_RANK"] = both["OMPI_COMM_WORLD_LOCAL_RANK"] = "1";
  EXPECT_THAT(
      problems(both),
      HasSubstr("SLURM_PROCID says rank 2 of 4, but OMPI_COMM_WORLD_RANK says rank 1 of 4"));
  for (const char* name : {"RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"}) {
    both.erase(absl::StrCat("OMPI_COMM_WORLD_", name));
  }
  EXPECT_EQ(problems(both), "") << "what was advised does not help";
  both = recorded("mpich");
  for (const auto& [name, value] : recorded("srun_three_nodes")) both[name] = value;
  EXPECT_THAT(problems(both), HasSubstr("says rank 5 of 7, but PMI_RANK says rank 2 of 4"));
  both = variables_under("intel_mpi");
  for (const auto& [name, value] : variables_under("mvapich")) both[name] = value;
  EXPECT_EQ(problems(both), "") << "rank 2 of 4, both say";
  both["PMI_RANK"] = both["MPI_LOCALRANKID"] = "3";
  EXPECT_THAT(problems(both), HasSubstr("MV2_COMM_WORLD_RANK says rank 2 of 4, but PMI_RANK says "
                                        "rank 3 of 4"));
}

TEST(Case34, WhatWasSetByHandMustNotContradictALauncher) {
  Variables variables = recorded("openmpi");
  variables["TESSERA_STORE"] = "tcp://localhost:29500";
  variables["RANK"] = "2";
  variables["WORLD_SIZE"] = "4";
  EXPECT_EQ(problems(variables), "");
  EXPECT_EQ(identity_of(variables).local_world_size, 4) << "Open MPI knows";
  variables["RANK"] = "11";  // each process of mpirun starts four
  variables["WORLD_SIZE"] = "16";
  EXPECT_EQ(problems(variables), "");
  EXPECT_FALSE(identity_of(variables).has_local);
  variables["RANK"] = "0";
  variables["WORLD_SIZE"] = "1";  // left over from another job: four would train alone
  EXPECT_THAT(problems(variables),
              HasSubstr("RANK says rank 0 of 1, but OMPI_COMM_WORLD_RANK says rank 2 of 4"));
  variables["TORCHELASTIC_RUN_ID"] = "another job's";
  EXPECT_THAT(problems(variables), HasSubstr("RANK says rank 0 of 1, but"));
  variables.erase("TORCHELASTIC_RUN_ID");
  variables["RANK"] = "3";
  variables["WORLD_SIZE"] = "4";
  EXPECT_THAT(problems(variables), HasSubstr("says rank 3 of 4, but"));
  variables["TORCHELASTIC_RUN_ID"] = "torchrun's";
  EXPECT_EQ(problems(variables), "") << "torchrun in a process of mpirun";
}

/// tessera-run in each process of mpirun, or mpirun in a rank of tessera-run.
TEST(Case34, LaunchersOfOneHostAndOfSeveralProcessesAreWorldsApart) {
  for (const char* size : {"1", "2", "4", "8"}) {
    Variables variables = recorded("openmpi");
    variables["TESSERA_STORE"] = "tcp://localhost:29500";
    variables["TORCHELASTIC_RUN_ID"] = "a launcher's";
    variables["RANK"] = variables["LOCAL_RANK"] = "0";
    variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = size;
    EXPECT_THAT(problems(variables),
                AllOf(HasSubstr(absl::StrCat("says rank 0 of ", size,
                                             ", but OMPI_COMM_WORLD_RANK says rank 2 of 4")),
                      HasSubstr("it is not clear which launcher counts; start the program by one"),
                      HasSubstr("left over from another job")));
    variables["WORLD_SIZE"] = "16";  // torchrun, of several hosts
    EXPECT_EQ(problems(variables), "") << size;
    variables["WORLD_SIZE"] = size;
    variables["OMPI_COMM_WORLD_RANK"] = variables["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
    variables["OMPI_COMM_WORLD_SIZE"] = variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
    variables["PMIX_RANK"] = "0";
    EXPECT_EQ(problems(variables), "") << "mpirun has started one tessera-run";
  }
}

}  // namespace
}  // namespace tessera::internal
