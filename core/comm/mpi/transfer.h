#pragma once

#include <memory>
#include <vector>

#include "tessera/core/comm/group/call.h"
#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/mpi/exchange.h"
#include "tessera/core/comm/mpi/link.h"
#include "tessera/core/comm/mpi/steps.h"

namespace tessera::internal::mpi {

/// A transfer whose data MPI may still move when it is given up.
class Transfer : public internal::Transfer {
 public:
  /// What MPI has not ended; null if there is nothing.
  virtual Exchange* exchange() = 0;
};

/// This rank's part in a collective of the group of `link`, which keeps the call until it is given
/// up.
std::unique_ptr<Transfer> make_transfer(Link& link, Call& call);

}  // namespace tessera::internal::mpi
