#include "tessera/core/comm/rendezvous/worlds.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/comm/hosts/world_group.h"
#include "tessera/core/comm/meeting/mac_key.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/process/machine.h"
#include "tessera/process_group.h"
#include "tessera/time_out.h"

namespace tessera::internal {
namespace {

using hosts::HostLayout;

// How much longer the time-out between hosts is than the time-out inside a host. So if a rank is
// missing, the ranks of its own host time out first, and name it. Ranks of other hosts would name
// the ranks that wait for the missing one.
constexpr auto kGrace = std::chrono::seconds(1);

/// Returns the number of each rank's host, by rank. Hosts are numbered in the order of their first
/// ranks.
std::vector<int> find_hosts(ProcessGroup& flat, const Environment& environment) {
  const std::string id =
      environment.host.empty() ? host_id() : absl::StrCat("TESSERA_HOST ", environment.host);
  const std::vector<std::string> ids = flat.all_gather_bytes(id, "hosts");
  std::map<std::string, int> numbers;
  std::vector<int> host_of_rank;
  for (const std::string& one : ids) {
    host_of_rank.push_back(
        numbers.try_emplace(one, static_cast<int>(numbers.size())).first->second);
  }
  return host_of_rank;
}

/// Makes the group of this host's ranks, which share memory. If that fails on some host, the ranks
/// of all hosts throw.
std::shared_ptr<Group> meet_on_hosts(ProcessGroup& flat, const HostLayout& layout,
                                     const ProcessGroupOptions& options,
                                     const Environment& environment) {
  const int host = layout.host_of(flat.rank());
  HostPart part{.ranks = layout.ranks_of(host),
                .own = layout.local_of(flat.rank()),
                .host = host_name(environment),
                .name = {}};
  if (layout.hosts > 1) part.group = absl::StrCat("world inside ", part.host);
  part.name =
      flat.all_gather_bytes(absl::StrCat("tessera/", MacKey::new_nonce()),
                            "where ranks of a host meet")[static_cast<size_t>(part.ranks.front())];
  std::shared_ptr<Group> inside;
  std::string problem =
      thrown_by([&] { inside = make_shm_part(options, environment, std::move(part)); });
  if (!problem.empty()) absl::StrAppend(&problem, "; or set TESSERA_BACKEND=mpi on all ranks");
  refuse_on_all_ranks(flat, problem, "init_process_group");
  return inside;
}

void say_no_levels(const std::vector<int>& host_of_rank) {
  std::vector<int> counts;
  for (const int host : host_of_rank) {
    counts.resize(std::max(counts.size(), static_cast<size_t>(host) + 1));
    ++counts[static_cast<size_t>(host)];
  }
  std::fprintf(stderr,
               "[rendezvous] %d hosts with %s ranks: all communicate by MPI, each for itself; "
               "shared memory inside hosts needs equally many on each, several, and in order\n",
               static_cast<int>(counts.size()), absl::StrJoin(counts, ", ").c_str());
}

}  // namespace

std::shared_ptr<ProcessGroup> make_hosts_world(ProcessGroupOptions options,
                                               const Environment& environment) {
  ProcessGroupOptions of_flat = options;
  of_flat.backend = "hosts";
  of_flat.timeout = bounded(options.timeout + kGrace);
  auto flat = make_mpi_world(of_flat, environment);
  if (flat->size() == 1) return flat;
  const std::vector<int> host_of_rank = find_hosts(*flat, environment);
  const auto layout = HostLayout::of(host_of_rank);
  if (!layout.has_value() || (layout->hosts > 1 && !layout->is_two_level())) {
    if (environment.is_verbose && flat->rank() == 0) say_no_levels(host_of_rank);
    return flat;
  }
  const auto inside = meet_on_hosts(*flat, *layout, options, environment);
  if (layout->hosts == 1) return inside;
  return hosts::make_group(flat, inside, *layout);
}

}  // namespace tessera::internal
