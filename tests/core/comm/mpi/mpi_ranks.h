#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/comm/mpi/world_group.h"
#include "tessera/process_group.h"

namespace tessera::internal::testing {

using MpiBody = std::function<void(std::shared_ptr<ProcessGroup>)>;
using MpiWorldBody = std::function<void(mpi::WorldGroup)>;

/// Threads that are ranks of a world over the fake MPI. Throws what the ranks threw.
void run_mpi_ranks(int size, const MpiBody& body,
                   std::chrono::milliseconds timeout = std::chrono::seconds(20));

/// The same; returns each rank's error, "" for a rank that returned. Waits as long as
/// `report_after` are reported.
std::vector<std::string> run_mpi_ranks_expecting_errors(
    int size, const MpiBody& body, std::chrono::milliseconds timeout = std::chrono::seconds(20),
    std::chrono::milliseconds report_after = std::chrono::milliseconds(0));

/// The same, for tests that use the ranks' worlds.
std::vector<std::string> run_mpi_worlds_expecting_errors(
    int size, const MpiWorldBody& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(20),
    std::chrono::milliseconds report_after = std::chrono::milliseconds(0));

/// For ranks that are threads with a group of `size` ranks: what it is called with, by each rank
/// once, it replaces by that rank's group of one new world over the fake MPI.
std::function<std::shared_ptr<ProcessGroup>(std::shared_ptr<ProcessGroup>)> over_mpi(
    int size, std::chrono::milliseconds timeout = std::chrono::seconds(20));

}  // namespace tessera::internal::testing
