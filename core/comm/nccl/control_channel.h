#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/comm/nccl/world.h"

namespace tessera::internal::nccl {

/// Repeated exchanges among the ranks of a group through the table: every rank's bytes to every
/// rank. Each rank has one key there, two while an exchange is in progress. A world of one uses no
/// table. One exchange at a time; used by one thread at a time.
class ControlChannel {
 public:
  /// `rank` within the group; `what` names the channel among those of the group.
  ControlChannel(std::shared_ptr<World> world, int rank, std::string what);

  /// Returns every rank's bytes, by rank. Collective, blocks for milliseconds; one key is written
  /// and one read per rank. `pending` stands for the call and is watched by the world: a missing
  /// rank is its time-out. If the ranks' calls differ, every rank throws CommError that names both
  /// calls.
  std::vector<std::string> exchange(Pending& pending, std::string_view bytes);

  /// The two halves of exchange(): publishes this rank's part, waits for the others'.
  void start(Pending& pending, std::string_view bytes);
  std::vector<std::string> finish(Pending& pending);
  /// Instead of finish(), if this rank does not need the others' parts. Neither blocks nor uses the
  /// table. The others still get its part, and the next exchange works normally.
  void abandon() { is_open_ = false; }
  /// Whether start() waits for finish().
  bool is_open() const { return is_open_; }

 private:
  const std::shared_ptr<World> world_;
  const int rank_;
  const std::string what_;
  std::vector<std::string> keys_;  // of this rank's parts, in the table
  std::string own_;                // the part given last
  size_t own_call_length_ = 0;
  bool is_open_ = false;
};

}  // namespace tessera::internal::nccl
