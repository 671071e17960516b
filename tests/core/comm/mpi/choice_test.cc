// When the mpi backend is chosen, and the error if there is no MPI.
#include <cstdlib>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/rendezvous.h"
#include "tessera/tests/support/forked_child.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

using Variables = std::map<std::string, std::string>;

/// Returns the error of init_process_group() in a process with these variables.
std::string said_with(const Variables& variables, const ProcessGroupOptions& options = {}) {
  return testing::run_in_fork([&] {
           for (const auto& [name, value] : variables) {
             ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
           }
           return message_of([&] { init_process_group(options); });
         })
      .text;
}

const Variables kTwoHosts = {{"OMPI_COMM_WORLD_RANK", "2"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"TESSERA_MPI", "/nowhere/libmpi.so.40"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(MpiChoice, RanksOnSeveralHostsTakeMpiAndOthersWhereItIsAskedFor) {
  const auto has_no_mpi =
      AllOf(HasSubstr("[mpi] library: got none"), HasSubstr("/nowhere/libmpi.so.40"));
  EXPECT_THAT(said_with(kTwoHosts), has_no_mpi);
  const Variables one_host = with(kTwoHosts, "OMPI_COMM_WORLD_LOCAL_SIZE", "4");
  EXPECT_THAT(said_with(with(one_host, "TESSERA_BACKEND", "mpi")), has_no_mpi);
  EXPECT_THAT(said_with(one_host, {.backend = "mpi"}), has_no_mpi);
  EXPECT_THAT(said_with(one_host, {.timeout = std::chrono::milliseconds(200)}),
              HasSubstr("timed out"));  // shm, and nobody comes
}

TEST(MpiChoice, WhatIsAskedForInVainIsNamed) {
  EXPECT_THAT(
      said_with({{"TESSERA_BACKEND", "gloo"}}),
      HasSubstr("TESSERA_BACKEND: got 'gloo', expected 'auto', 'loopback' (one rank), 'mpi' "
                "(CPUs of any hosts, under mpirun or srun)"));
  EXPECT_THAT(said_with(with(kTwoHosts, "TESSERA_MPI", "lam")),
              AllOf(HasSubstr("[mpi] library: got none (lam: "),
                    HasSubstr("or set TESSERA_MPI to openmpi, mpich or the path of its libmpi")));
  EXPECT_THAT(said_with({}, {.device = at::kCUDA, .backend = "mpi"}),
              HasSubstr("got backend 'mpi' with device 'cuda', expected the CPU"));
}

}  // namespace
}  // namespace tessera::internal
