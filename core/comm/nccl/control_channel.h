#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/comm/nccl/world.h"

namespace tessera::nccl {

/// What the ranks of a group tell each other beside NCCL, again and again: every rank's bytes to
/// every rank, by the store. Each rank has one key there, two while an exchange is under way.
class ControlChannel {
 public:
  /// `rank` within the group; `what` names the channel among those of the group.
  ControlChannel(std::shared_ptr<World> world, int rank, std::string what);

  /// Every rank's bytes, by rank. Collective, blocks: milliseconds, one key written and one read
  /// per rank. In the name of `pending`, which the world watches: a rank that does not come is its
  /// time-out. Ranks whose calls differ get a CommError that names both calls, on every rank, and
  /// nothing else of each other.
  std::vector<std::string> exchange(Pending& pending, std::string_view bytes);

 private:
  const std::shared_ptr<World> world_;
  const int rank_;
  const std::string what_;
  std::string last_key_;  // of this rank's part
};

}  // namespace tessera::nccl
