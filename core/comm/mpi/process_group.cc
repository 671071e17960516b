#include "tessera/mpi_group.h"

#include <c10/util/Exception.h>

#include "tessera/core/comm/mpi/initialize.h"
#include "tessera/core/comm/mpi/progress.h"
#include "tessera/core/comm/mpi/world_group.h"
#include "tessera/process_group_options.h"
#include "tessera/time_out.h"

namespace tessera {

std::shared_ptr<ProcessGroup> mpi::process_group(const Calls& calls, Handle comm,
                                                 std::chrono::milliseconds timeout) {
  TORCH_CHECK(timeout.count() > 0, "[mpi] process_group: got a timeout of ", timeout.count(),
              " ms, expected at least 1 ms; leave it out for 10 minutes");
  timeout = bounded(timeout);
  internal::mpi::require_initialized(calls, timeout);
  return internal::mpi::make_world(
             "process_group", calls, comm,
             {.timeout = timeout, .report_after = ProcessGroupOptions().report_after})
      .group;
}

void mpi::leave() { internal::mpi::Progress::instance().leave("mpi::leave() has ended it"); }

}  // namespace tessera
