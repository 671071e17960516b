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

/// This rank's part in a collective of a group: the steps of its data, one after the other.
///
/// Note [Calls that follow]
/// ~~~~~~~~~~~~~~~~~~~~~~~~
/// Calls are over one after the other. But when all messages of one have begun, what is under way
/// takes a while to come, and the wire would lie idle until both ranks have seen its end: the next
/// call begins meanwhile, if both are of the ops whose last messages need no other memory than the
/// call's.
class CallTransfer final : public Transfer {
 public:
  /// `call` keeps it until it is given up.
  CallTransfer(Link& link, Call& call);

  void announce() override;
  State advance() override;
  std::vector<int> awaited() override;
  Exchange* exchange() override { return exchange_.get(); }

 private:
  void begin();
  bool take_steps();

  Link& link_;
  Call& call_;
  const std::shared_ptr<Ranks> ranks_;  // and what else MPI may use when it is given up
  const std::shared_ptr<Scratch> scratch_;
  std::shared_ptr<const Round> round_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Steps> steps_;  // null where nothing is to be moved
  bool has_begun_all_ = false;
};

}  // namespace tessera::internal::mpi
