#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/hosts/host_layout.h"
#include "tessera/process_group.h"

namespace tessera::internal::hosts {

/// The groups that the ranks of several hosts communicate in, of which each is used by one thread
/// at a time and in one order on all its ranks.
struct Levels {
  HostLayout layout;
  int rank;
  std::shared_ptr<ProcessGroup> flat;    ///< all ranks: messages, and making groups and windows
  std::shared_ptr<ProcessGroup> moves;   ///< all ranks: collectives that gain nothing by levels
  std::shared_ptr<ProcessGroup> inside;  ///< of this host: what comes before anything is sent
  std::shared_ptr<ProcessGroup> inside_last;  ///< of this host: what comes after that
  std::shared_ptr<ProcessGroup> across;       ///< this rank's column: one rank of each host
  std::shared_ptr<ProcessGroup> calls;        ///< the same: what ranks call, ahead of the data

  int hosts() const { return layout.hosts(); }
  int locals() const { return layout.ranks_per_host(); }
  int host() const { return layout.host_of(rank); }
  int local() const { return layout.local_of(rank); }

  /// Memory that the ranks of this host share.
  at::Tensor scratch(int64_t numel, at::ScalarType dtype) const {
    return inside->allocate(numel, dtype);
  }
};

/// Collective over `flat`, whose ranks lie as the two-level `layout` says; `inside`: those of this
/// host in their order.
Levels make_levels(std::shared_ptr<ProcessGroup> flat, std::shared_ptr<ProcessGroup> inside,
                   HostLayout layout);

/// Elements [begin, begin + numel) of `tensor`, which they keep. No operator, so that no observer
/// of operators takes it for the model's.
at::Tensor part_of(const at::Tensor& tensor, int64_t begin, int64_t numel);

}  // namespace tessera::internal::hosts
