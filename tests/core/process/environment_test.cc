// Each variable missing or malformed, and all problems at once.
#include "tessera/environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/process/variables.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::lookup_in;
using ::testing::Not;
using testing::problems;
using testing::recorded;
using testing::TemporaryDirectory;
using testing::Variables;

Variables torchrun() {
  return {{"RANK", "1"},
          {"WORLD_SIZE", "2"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "29500"}};
}

TEST(Environment, NothingSetIsAWorldOfOne) {
  const auto environment = read_environment(lookup_in({}));
  ASSERT_TRUE(environment.ok());
  EXPECT_EQ(environment->rank, 0);
  EXPECT_EQ(environment->world_size, 1);
}

TEST(Environment, OneProcessOfALauncherIsAWorldOfOne) {
  const std::pair<const char*, const char*> launchers[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
  };
  for (const auto& [rank, size] : launchers) {
    EXPECT_EQ(problems({{rank, "0"}, {size, "1"}}), "");
    EXPECT_THAT(problems({{size, "4"}}),
                AllOf(HasSubstr(rank), HasSubstr(std::string(": not set, although ") + size)));
    EnvironmentNeeds needs;
    needs.identity = false;
    EXPECT_TRUE(read_environment(lookup_in({{size, "4"}}), needs).ok());
  }
}

TEST(Environment, ReadsWhatTorchrunAndTesseraRunExport) {
  Variables variables = torchrun();
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  auto environment = read_environment(lookup_in(variables));
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->rank, 1);
  EXPECT_EQ(environment->world_size, 2);
  EXPECT_EQ(environment->local_rank, 1);
  EXPECT_EQ(environment->local_world_size, 2);
  EXPECT_EQ(environment->master_addr, "127.0.0.1");
  EXPECT_EQ(environment->master_port, 29500);
  EXPECT_TRUE(environment->agent_store);

  const TemporaryDirectory directory;
  environment = read_environment(lookup_in({{"RANK", "0"},
                                            {"WORLD_SIZE", "1"},
                                            {"TESSERA_STORE", "file://" + directory.path() + "/s"},
                                            {"TESSERA_JOB_TOKEN", "secret"}}));
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->store_url, "file://" + directory.path() + "/s");
  EXPECT_EQ(environment->job_token, "secret");
}

struct Bad {
  const char* name;
  std::string value;
};

class EachVariable : public ::testing::TestWithParam<Bad> {};

TEST_P(EachVariable, MalformedIsNamedWithItsValue) {
  Variables variables = torchrun();
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  variables["TESSERA_JOB_TOKEN"] = "x";
  variables["TESSERA_VERBOSE"] = "1";
  ASSERT_EQ(problems(variables), "");
  variables[GetParam().name] = GetParam().value;
  EXPECT_THAT(problems(variables), HasSubstr(std::string("[environment] ") + GetParam().name +
                                             ": got '" + GetParam().value + "', expected "));
}

INSTANTIATE_TEST_SUITE_P(
    Values, EachVariable,
    ::testing::Values(
        Bad{"RANK", ""}, Bad{"RANK", " 1"}, Bad{"RANK", "1 "}, Bad{"RANK", "1x"}, Bad{"RANK", "-1"},
        Bad{"RANK", "+1"}, Bad{"RANK", "0x1"}, Bad{"RANK", "1.0"}, Bad{"RANK", "2"},
        Bad{"RANK", "2147483648"}, Bad{"RANK", "99999999999999999999"}, Bad{"WORLD_SIZE", ""},
        Bad{"WORLD_SIZE", "0"}, Bad{"WORLD_SIZE", "two"}, Bad{"WORLD_SIZE", "-2"},
        Bad{"WORLD_SIZE", "2147483648"}, Bad{"LOCAL_RANK", ""}, Bad{"LOCAL_RANK", "2"},
        Bad{"LOCAL_RANK", "1\n"}, Bad{"LOCAL_WORLD_SIZE", ""}, Bad{"LOCAL_WORLD_SIZE", "0"},
        Bad{"LOCAL_WORLD_SIZE", "3"}, Bad{"MASTER_ADDR", ""}, Bad{"MASTER_ADDR", "two words"},
        Bad{"MASTER_PORT", ""}, Bad{"MASTER_PORT", "0"}, Bad{"MASTER_PORT", "70000"},
        Bad{"MASTER_PORT", "65536"}, Bad{"MASTER_PORT", "http"}, Bad{"MASTER_PORT", "-1"},
        Bad{"TESSERA_STORE", ""}, Bad{"TESSERA_STORE", "/tmp/x/store"},
        Bad{"TESSERA_STORE", "file://tmp/x/store"}, Bad{"TESSERA_STORE", "file:///store"},
        Bad{"TESSERA_STORE", "file:///no/such/directory/store"},
        Bad{"TESSERA_STORE", "file:///tmp/store"}, Bad{"TESSERA_STORE", "tcp://127.0.0.1"},
        Bad{"TESSERA_STORE", "tcp://:29500"}, Bad{"TESSERA_STORE", "tcp://127.0.0.1:"},
        Bad{"TESSERA_STORE", "tcp://127.0.0.1:0"}, Bad{"TESSERA_STORE", "tcp://127.0.0.1:65536"},
        Bad{"TESSERA_STORE", "tcp://127.0.0.1:http"}, Bad{"TESSERA_STORE", "tcp://::1:29500"},
        Bad{"TESSERA_STORE", "tcp://host:29500?rank=0&world_size=2"},
        Bad{"TESSERA_STORE", "udp://host:29500"}, Bad{"TESSERA_VERBOSE", ""},
        Bad{"TESSERA_HOST", ""}, Bad{"TESSERA_HOST", "a host"},
        Bad{"TESSERA_HOST", "more-than-64-letters.more-than-64-letters.more-than-64-letters.64"},
        Bad{"TESSERA_VERBOSE", "yes"}, Bad{"TORCHELASTIC_USE_AGENT_STORE", "true"},
        Bad{"TORCHELASTIC_USE_AGENT_STORE", ""}, Bad{"TESSERA_JOB_TOKEN", ""}));

class EachFamily : public ::testing::TestWithParam<const char*> {};

TEST_P(EachFamily, APartIsNotEnough) {
  Variables variables = torchrun();
  variables.erase(GetParam());
  EXPECT_THAT(problems(variables), AllOf(HasSubstr(std::string("[environment] ") + GetParam()),
                                         HasSubstr(": not set, although ")));
}

INSTANTIATE_TEST_SUITE_P(Names, EachFamily,
                         ::testing::Values("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                           "MASTER_ADDR", "MASTER_PORT"));

TEST(Environment, AnAddressIsAPlaceToo) {
  const auto name = parse_tcp_url("tcp://node1.cluster:29500");
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(name->host, "node1.cluster");
  EXPECT_EQ(name->port, 29500);
  const auto number = parse_tcp_url("tcp://[::1]:65535");
  ASSERT_TRUE(number.ok()) << number.status();
  EXPECT_EQ(number->host, "::1");
  EXPECT_EQ(number->port, 65535);
  EXPECT_EQ(
      problems({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TESSERA_STORE", "tcp://localhost:29500"}}),
      "");
}

TEST(Environment, AStoreWithoutAnIdentityIsNamed) {
  EXPECT_THAT(problems({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}}),
              HasSubstr("RANK, WORLD_SIZE: not set, although MASTER_ADDR is"));
}

TEST(Environment, RanksNeedAPlaceToMeet) {
  EXPECT_THAT(problems({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("TESSERA_STORE, MASTER_ADDR, MASTER_PORT: not set, expected one place "
                        "where 2 ranks meet"));
  EXPECT_EQ(problems({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "");
}

TEST(Environment, AllProblemsAreListedAtOnce) {
  EXPECT_THAT(problems({{"RANK", "1x"},
                        {"WORLD_SIZE", "-2"},
                        {"LOCAL_RANK", "0"},
                        {"MASTER_PORT", "70000"},
                        {"TESSERA_STORE", "store"}}),
              AllOf(HasSubstr("RANK: got '1x'"), HasSubstr("WORLD_SIZE: got '-2'"),
                    HasSubstr("LOCAL_WORLD_SIZE: not set"), HasSubstr("MASTER_PORT: got '70000'"),
                    HasSubstr("MASTER_ADDR: not set"), HasSubstr("TESSERA_STORE: got 'store'")));
}

TEST(Environment, TheStoresDirectoryMustBeClosedToOthers) {
  const TemporaryDirectory directory;
  const std::string url = "file://" + directory.path() + "/store";
  EXPECT_TRUE(parse_store_url(url).ok());
  const auto expect_refused = [](const std::string& refused) {
    EXPECT_THAT(std::string(parse_store_url(refused).status().message()),
                AllOf(HasSubstr("belongs to this user and is closed to others; make a directory of "
                                "your own and name a file in it: mkdir -m 700 /tmp/tessera-"),
                      Not(HasSubstr("chmod"))))
        << refused;
  };
  for (const mode_t mode : {0750, 01777, 0777, 01755, 0703}) {
    ::chmod(directory.path().c_str(), mode);
    expect_refused(url);
  }
  ::chmod(directory.path().c_str(), 0700);
  EXPECT_TRUE(parse_store_url(url).ok());
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(directory.path().c_str(), 12345, 12345), 0);
    expect_refused(url);
  }
  expect_refused("file:///tmp/store");
  expect_refused("file:///tmp/no/such/store");
}

TEST(Environment, WhatTheCallerBringsIsNotRead) {
  const Variables bad = {{"RANK", "x"}, {"WORLD_SIZE", "y"}, {"MASTER_PORT", "z"}};
  EXPECT_TRUE(
      read_environment(lookup_in(bad), EnvironmentNeeds{.identity = false, .store = false}).ok());
  const auto store_only =
      read_environment(lookup_in(bad), EnvironmentNeeds{.identity = false, .store = true});
  EXPECT_THAT(std::string(store_only.status().message()), HasSubstr("MASTER_PORT: got 'z'"));
}

TEST(Identity, IsDescribedInALineWithoutASecret) {
  Variables variables = testing::recorded("srun");
  variables["TESSERA_JOB_TOKEN"] = "secret";
  const std::string text = describe_identity(read_environment(lookup_in(variables)).value());
  EXPECT_THAT(
      text, AllOf(HasSubstr("rank 2 of 4, local rank 2 of 4, by SLURM's srun "
                            "(SLURM_PROCID), job slurm-"),
                  HasSubstr(", rank 0 on node08"), Not(HasSubstr("secret")), Not(HasSubstr("\n"))));
  EXPECT_EQ(describe_identity(read_environment(lookup_in({})).value()),
            "rank 0 of 1, as no variable says otherwise");
}

TEST(Case34, WithoutAPlaceOneHostNeedsNoneAndSeveralNeedAnAddress) {
  for (const char* record : {"srun", "openmpi", "mpich", "srun_openmpi", "batch_mpich"}) {
    EXPECT_EQ(problems(recorded(record)), "") << record;
  }
  EXPECT_THAT(problems(recorded("batch_mpich_two_nodes")),
              AllOf(HasSubstr("expected one place where 4 ranks meet"),
                    HasSubstr("on CPUs need none: set backend 'mpi'")));
  const auto several = read_environment(lookup_in(recorded("srun_three_nodes")));
  ASSERT_TRUE(several.ok()) << several.status();
  EXPECT_EQ(several->master_addr, "node08");
  EXPECT_GE(several->master_port, 20000);
  EXPECT_LT(several->master_port, 30000);
}

}  // namespace
}  // namespace tessera::internal
