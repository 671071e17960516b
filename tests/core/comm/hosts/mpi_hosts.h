#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/core/comm/hosts/group.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/core/comm/mpi/mpi_ranks.h"

namespace tessera::internal::testing {

/// Threads that are ranks on these hosts: shared memory inside each, the fake MPI between them.
/// Returns each rank's error.
inline std::vector<std::string> run_mpi_hosts_expecting_errors(
    const std::vector<int>& host_of_rank, const MpiBody& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const hosts::HostLayout layout(host_of_rank);
  std::vector<c10::intrusive_ptr<c10d::HashStore>> stores;
  for (int host = 0; host < layout.hosts(); ++host) {
    stores.push_back(c10::make_intrusive<c10d::HashStore>());
  }
  // As of a job: between hosts ranks wait longer, so that its own host names who is missing.
  const auto of_flat = timeout + std::chrono::milliseconds(500);
  return run_mpi_ranks_expecting_errors(
      layout.ranks(),
      [&](std::shared_ptr<ProcessGroup> flat) {
        const int host = layout.host_of(flat->rank());
        ProcessGroupOptions options;
        options.rank = layout.local_of(flat->rank());
        options.world_size = layout.ranks_per_host();
        options.store = stores[static_cast<size_t>(host)];
        options.timeout = timeout;
        options.backend = "shm";
        options.lane = ProcessGroupOptions::Lane::kInline;
        auto inside = init_process_group(options);
        body(hosts::make_group(std::move(flat), std::move(inside), layout));
      },
      of_flat);
}

/// The same; throws what the ranks threw.
inline void run_mpi_hosts(const std::vector<int>& host_of_rank, const MpiBody& body) {
  std::string text;
  for (const std::string& error : run_mpi_hosts_expecting_errors(host_of_rank, body)) {
    if (!error.empty()) text += error + "\n";
  }
  if (!text.empty()) throw std::runtime_error(text);
}

}  // namespace tessera::internal::testing
