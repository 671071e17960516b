#pragma once

#include <atomic>
#include <memory>

#include "tessera/tests/core/comm/mpi/mpi_ranks.h"

namespace tessera::internal::testing {

/// Returns true if ranks read each other's memory over MPI; otherwise they gather split parameters
/// together.
inline bool mpi_reads_one_sided() {
  static const bool reads = [] {
    std::atomic<bool> can{false};
    run_mpi_ranks(
        2, [&](const std::shared_ptr<ProcessGroup>& group) { can = group->can().one_sided_reads; });
    return can.load();
  }();
  return reads;
}

}  // namespace tessera::internal::testing
