#include "tessera/core/comm/rendezvous/worlds.h"

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/comm/mpi/library.h"
#include "tessera/core/comm/mpi/world_group.h"
#include "tessera/core/comm/rendezvous/core_share.h"
#include "tessera/core/process/available_cores.h"
#include "tessera/core/process/machine.h"
#include "tessera/process_group.h"

namespace tessera::internal {
namespace {

void share_cores_of_host(const mpi::World& world, const Environment& environment) {
  std::vector<int> pids;
  const std::string own = world.place(world.rank()).host;
  for (int rank = 0; rank < world.size(); ++rank) {
    const mpi::World::Place place = world.place(rank);
    if (place.host == own) pids.push_back(place.pid);
  }
  share_cores(available_cores(pids), environment.local_world_size);
}

/// Tells every rank the process and the host of each rank.
void exchange_places(const mpi::WorldGroup& made, const std::string& host) {
  std::vector<mpi::World::Place> places;
  for (const std::string& text :
       made.group->all_gather_bytes(absl::StrCat(::getpid(), " ", host), "places")) {
    const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits(' ', 1));
    mpi::World::Place place;
    if (words.size() != 2 || !absl::SimpleAtoi(words[0], &place.pid)) continue;
    place.host = words[1];
    places.push_back(std::move(place));
  }
  made.world->set_places(std::move(places));
}

}  // namespace

std::string host_name(const Environment& environment) {
  return environment.host.empty() ? machine_name() : environment.host;
}

std::shared_ptr<Group> make_mpi_world(ProcessGroupOptions options, const Environment& environment) {
  const auto library = mpi::load_library();
  TORCH_CHECK(library.ok(), std::string(library.status().message()));
  const mpi::Calls& calls = **library;
  mpi::WorldGroup made = mpi::make_world(
      calls, calls.world(), {.timeout = options.timeout, .report_after = options.report_after},
      mpi::MpiOwner::kTessera);
  std::shared_ptr<Group>& group = made.group;
  const int size = group->size();
  // If MPI has another size than the environment says, every rank finds that by itself, because
  // each is in an MPI world of its own. Destroy the group before the throw, because a group that is
  // destroyed by an exception reports a failure.
  if (size != environment.world_size) group.reset();
  TORCH_CHECK(
      size == environment.world_size, "[mpi] world: got ", size, " ranks from ", calls.library(),
      ", expected the ", environment.world_size,
      " that the environment names; start the program with the mpirun of this MPI, or with "
      "srun and a PMI that it knows (--mpi=pmix for Open MPI, --mpi=pmi2 for MPICH; without "
      "one every process is an MPI world of one)");
  refuse_on_all_ranks(*group,
                      group->rank() == environment.rank
                          ? std::string()
                          : absl::StrCat("[mpi] rank: got ", group->rank(), " from MPI, expected ",
                                         environment.rank,
                                         ", as the environment says; unset RANK "
                                         "and WORLD_SIZE, or set them as MPI does"),
                      "init_process_group");
  // Compare the backends here. Otherwise ranks with different backends would make different calls
  // later, and that error would not name the variable that is the cause.
  require_equal(*group,
                {absl::StrCat("backend ", options.backend == "hosts" ? "hosts" : "mpi",
                              " (TESSERA_BACKEND, ProcessGroupOptions::backend, TESSERA_HOST)")},
                "init_process_group");
  exchange_places(made, host_name(environment));
  if (environment.is_of_scheduler()) share_cores_of_host(*made.world, environment);
  return group;
}

}  // namespace tessera::internal
