#pragma once

#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/hosts/world_group.h"
#include "tessera/core/comm/meeting/mac_key.h"
#include "tessera/core/comm/rendezvous/worlds.h"
#include "tessera/environment.h"
#include "tessera/process_group.h"
#include "tessera/tests/core/comm/mpi/mpi_ranks.h"

namespace tessera::internal::testing {

/// How others' errors name a rank of run_mpi_hosts().
inline std::string place_of_host(int host) {
  return absl::StrCat(" (pid ", ::getpid(), " on node", host, ")");
}

/// Runs threads that are ranks on these hosts, node0 and so on: shared memory inside each, the fake
/// MPI between them. Returns each rank's error.
inline std::vector<std::string> run_mpi_hosts_expecting_errors(
    const std::vector<int>& host_of_rank, const MpiBody& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const hosts::HostLayout layout = hosts::HostLayout::of(host_of_rank).value();
  std::vector<std::string> meetings;
  for (int host = 0; host < layout.hosts; ++host) {
    meetings.push_back(absl::StrCat("tessera/test/", MacKey::new_nonce()));
  }
  // As in a job: between hosts ranks wait longer, so that a missing rank's own host names it.
  const auto of_flat = timeout + std::chrono::seconds(1);
  return run_mpi_worlds_expecting_errors(
      layout.ranks(),
      [&](mpi::WorldGroup made) {
        const std::shared_ptr<Group>& flat = made.group;
        const int host = layout.host_of(flat->rank());
        std::vector<mpi::World::Place> places;
        for (const int one : host_of_rank) {
          places.push_back({.pid = ::getpid(), .host = absl::StrCat("node", one)});
        }
        made.world->set_places(std::move(places));
        ProcessGroupOptions options;
        options.timeout = timeout;
        auto inside = make_shm_part(options, Environment(),
                                    {.ranks = layout.ranks_of(host),
                                     .own = layout.local_of(flat->rank()),
                                     .host = absl::StrCat("node", host),
                                     .name = meetings[static_cast<size_t>(host)],
                                     .group = "world inside a host"});
        auto group = hosts::make_group(flat, inside, layout);
        made.group.reset();
        inside.reset();
        body(std::move(group));
      },
      of_flat);
}

/// The same; throws the ranks' errors.
inline void run_mpi_hosts(const std::vector<int>& host_of_rank, const MpiBody& body) {
  std::string text;
  for (const std::string& error : run_mpi_hosts_expecting_errors(host_of_rank, body)) {
    if (!error.empty()) text += error + "\n";
  }
  if (!text.empty()) throw std::runtime_error(text);
}

}  // namespace tessera::internal::testing
