#include "tessera/core/comm/mpi/world_group.h"

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/group/group.h"
#include "tessera/core/comm/mpi/initialize.h"
#include "tessera/core/comm/mpi/link.h"
#include "tessera/core/comm/mpi/progress.h"
#include "tessera/errors.h"
#include "tessera/mpi_group.h"
#include "tessera/process_group_options.h"
#include "tessera/time_out.h"

namespace tessera::internal::mpi {

WorldGroup make_world(const char* function, const Calls& calls, Handle comm,
                      Member::Patience patience) {
  const auto world = std::make_shared<World>(calls, comm, patience);
  const auto deadline = std::chrono::steady_clock::now() + patience.timeout;
  const auto fail = [&](const std::string& cause) {
    throw CommError({function, "world", -1, -1, "mpi"}, cause);
  };
  Progress& progress = Progress::instance();
  progress.post([&progress, world] {
    world->begin();
    progress.attach(world);
  });
  while (!world->is_ready()) {
    const std::string cause = world->failure();
    if (!cause.empty()) fail(cause);
    if (std::chrono::steady_clock::now() > deadline) {
      world->set_failure("the ranks have not met");
      fail(absl::StrCat("timed out: waited ", patience.timeout.count(),
                        " ms, and not all ranks of the communicator have come; each must call ",
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
  timeout = bounded(timeout);
  internal::mpi::initialize(calls, timeout, /*may_initialize=*/false);
  return internal::mpi::make_world(
             "process_group", calls, comm,
             {.timeout = timeout, .report_after = ProcessGroupOptions().report_after})
      .group;
}

void leave() { internal::mpi::Progress::instance().leave("mpi::leave() has ended it"); }

}  // namespace tessera::mpi
