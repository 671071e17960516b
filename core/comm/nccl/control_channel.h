#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/comm/nccl/world.h"

namespace tessera::internal::nccl {

/// What the ranks of a group tell each other beside NCCL, again and again: every rank's bytes to
/// every rank, by the store. Each rank has one key there, two while an exchange is under way. A
/// rank alone asks no store. One exchange at a time; used by one thread at a time.
class ControlChannel {
 public:
  /// `rank` within the group; `what` names the channel among those of the group.
  ControlChannel(std::shared_ptr<World> world, int rank, std::string what);

  /// Every rank's bytes, by rank. Collective, blocks: milliseconds, one key written and one read
  /// per rank. In the name of `pending`, which the world watches: a rank that does not come is its
  /// time-out. Ranks whose calls differ get a CommError that names both calls, on every rank, and
  /// nothing else of each other.
  std::vector<std::string> exchange(Pending& pending, std::string_view bytes);

  /// The two halves of exchange(): gives this rank's part to the others, waits for theirs.
  void start(Pending& pending, std::string_view bytes);
  std::vector<std::string> finish(Pending& pending);
  /// Instead of finish(): this rank does not want to know. Neither blocks nor asks the store. The
  /// others have its part all the same, and the next exchange is as good as ever.
  void abandon() { is_open_ = false; }
  /// Whether start() waits for finish().
  bool is_open() const { return is_open_; }

 private:
  const std::shared_ptr<World> world_;
  const int rank_;
  const std::string what_;
  std::vector<std::string> keys_;  // of this rank's parts, in the store
  std::string own_;                // the part given last
  size_t own_call_length_ = 0;
  bool is_open_ = false;
};

}  // namespace tessera::internal::nccl
