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

/// Runs threads that are ranks of a world over the fake MPI. Throws the ranks' errors.
void run_mpi_ranks(int size, const MpiBody& body,
                   std::chrono::milliseconds timeout = std::chrono::seconds(20));

/// The same; returns each rank's error, or "". Waits longer than `report_after` are reported.
std::vector<std::string> run_mpi_ranks_expecting_errors(
    int size, const MpiBody& body, std::chrono::milliseconds timeout = std::chrono::seconds(20),
    std::chrono::milliseconds report_after = std::chrono::milliseconds(0));

/// The same, for tests that use the ranks' worlds.
std::vector<std::string> run_mpi_worlds_expecting_errors(
    int size, const MpiWorldBody& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(20),
    std::chrono::milliseconds report_after = std::chrono::milliseconds(0));

/// Returns a function that `size` ranks, threads with a common group, call once each; it replaces
/// the rank's group by its group of a new world over the fake MPI.
std::function<std::shared_ptr<ProcessGroup>(std::shared_ptr<ProcessGroup>)> over_mpi(
    int size, std::chrono::milliseconds timeout = std::chrono::seconds(20));

}  // namespace tessera::internal::testing
