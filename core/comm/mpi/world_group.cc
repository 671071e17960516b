#include "tessera/core/comm/mpi/world_group.h"

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/mpi/link.h"
#include "tessera/core/comm/mpi/progress.h"
#include "tessera/errors.h"
#include "tessera/mpi_group.h"
#include "tessera/process_group_options.h"
#include "tessera/time_out.h"

namespace tessera::internal::mpi {
namespace {

void require_level(Calls::Level level, const char* source) {
  TORCH_CHECK(level >= Calls::kSerialized, "[mpi] thread level: got ",
              level == Calls::kSingle ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED", " from ",
              source,
              ", expected MPI_THREAD_SERIALIZED or above, as a thread of the group's calls MPI; "
              "call MPI_Init_thread with that, and use an MPI that was built for threads");
}

/// Initialises MPI, or if the application has done so, checks that it can be used. Runs on the
/// progress thread.
void initialize(const Calls& calls, MpiOwner owner) {
  Progress& progress = Progress::instance();
  Calls::Level level = calls.level();
  TORCH_CHECK(level != Calls::kFinalized,
              "[mpi] state: got an MPI that the application has finalised, expected one that can "
              "be used; make groups before MPI_Finalize");
  if (level == Calls::kNone) {
    TORCH_CHECK(owner == MpiOwner::kTessera,
                "[mpi] state: got an MPI that is not initialised, expected the application to have "
                "done so; call MPI_Init_thread with MPI_THREAD_SERIALIZED first");
    TORCH_CHECK(calls.initialize(&level) == 0, "[mpi] MPI_Init_thread: failed; see what it said");
    require_level(level, calls.library());
    return progress.own(calls);
  }
  require_level(level, "the application's MPI_Init");
  progress.leave_to_application(calls);
}

}  // namespace

WorldGroup make_world(const Calls& calls, Handle comm, Member::Patience patience, MpiOwner owner) {
  const bool is_own = owner == MpiOwner::kTessera;
  const char* const function = is_own ? "init_process_group" : "process_group";
  const auto fail = [&](const std::string& cause) {
    throw CommError({function, "world", -1, -1, "mpi"}, cause);
  };
  const auto time_out = [&](const std::string& what) {
    fail(absl::StrCat("timed out: waited ", patience.timeout.count(), " ms", what));
  };
  Progress& progress = Progress::instance();
  const auto first = [kept = &calls, owner] { initialize(*kept, owner); };
  if (!progress.run(first, patience.timeout)) {
    time_out(is_own ? " for MPI_Init_thread, which waits for ranks that have not called it: ps "
                      "shows on their hosts what they do; ranks that have another TESSERA_BACKEND "
                      "or TESSERA_HOST may meet elsewhere"
                    : " for the thread that calls MPI, which is in a call of MPI's that has not "
                      "returned");
  }
  const auto world = std::make_shared<World>(calls, comm, patience);
  const auto deadline = std::chrono::steady_clock::now() + patience.timeout;
  progress.post([&progress, world] {
    world->begin();
    progress.attach(world);
  });
  while (!world->is_ready()) {
    const std::string cause = world->failure();
    if (!cause.empty()) fail(cause);
    if (std::chrono::steady_clock::now() > deadline) {
      world->set_failure("the ranks have not met");
      time_out(absl::StrCat(", and not all ranks of the communicator have come; each must call ",
                            function, " with this communicator, in the same order as for others"));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  std::vector<int> ranks(static_cast<size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto link = std::make_unique<Link>(
      std::make_shared<Ranks>(world, group_key("world"), std::move(ranks), world->rank()));
  return {std::make_shared<Group>(std::move(link), "world", Lane::Mode::kThread, patience), world};
}

}  // namespace tessera::internal::mpi

namespace tessera::mpi {

std::shared_ptr<ProcessGroup> process_group(const Calls& calls, Handle comm,
                                            std::chrono::milliseconds timeout) {
  TORCH_CHECK(timeout.count() > 0, "[mpi] process_group: got a timeout of ", timeout.count(),
              " ms, expected at least 1 ms; leave it out for 10 minutes");
  return internal::mpi::make_world(
             calls, comm,
             {.timeout = bounded(timeout), .report_after = ProcessGroupOptions().report_after},
             internal::mpi::MpiOwner::kApplication)
      .group;
}

void leave() { internal::mpi::Progress::instance().leave("mpi::leave() has ended it"); }

}  // namespace tessera::mpi
