#include "tessera/mpi_group.h"

#include "tessera/core/comm/mpi/group.h"
#include "tessera/core/comm/mpi/initialize.h"
#include "tessera/process_group_options.h"
#include "tessera/time_out.h"

namespace tessera {

std::shared_ptr<ProcessGroup> mpi::process_group(const Calls& calls, Handle comm,
                                                 std::chrono::milliseconds timeout) {
  timeout = bounded(timeout);
  internal::mpi::require_initialized(calls, timeout);
  return internal::mpi::make_world(
      calls, comm, {.timeout = timeout, .report_after = ProcessGroupOptions().report_after});
}

}  // namespace tessera
