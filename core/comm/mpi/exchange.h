#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/mpi/communicator.h"

namespace tessera::internal::mpi {

/// Messages with data that are under way with the ranks of one group. For the progress thread only.
class Exchange {
 public:
  /// `world_ranks` by rank of the group; `own_tag` marks what this rank sends. References must
  /// outlive it.
  Exchange(Communicator& communicator, const std::vector<int>& world_ranks, int own_tag);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Sets the tag that marks the data of rank `rank`.
  void set_tag_of(int rank, int tag) { tags_[static_cast<size_t>(rank)] = tag; }

  static constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();
  /// The largest message that MPI sends eagerly, without asking the receiver: Open MPI over TCP
  /// asks from 64 KiB on. Note [Steps under way].
  static constexpr int64_t kUnaskedBytes = int64_t{60} << 10;

  /// In messages of at most `most` bytes, which must be equal on both ranks.
  void send(int to, const char* data, int64_t bytes, int64_t most = kWhole);
  void receive(int from, char* data, int64_t bytes, int64_t most = kWhole);

  /// Returns true if all messages are over. Tests them.
  bool is_over() { return is_over_but_for(0); }
  /// Returns true if all messages from before the last `steps` steps are over. Tests them.
  bool is_over_but_for(int64_t steps);
  /// Messages that begin from now on belong to the next step.
  void begin_step() { ++step_; }
  /// Gives up receives that have not begun.
  void cancel();
  /// Returns the ranks whose messages are not over. Tests them.
  std::vector<int> open_ranks();

 private:
  struct Message {
    Handle request;
    int rank;
    bool receives;
    int64_t step;
  };

  Communicator& communicator_;
  const std::vector<int>& world_ranks_;
  const int own_tag_;
  std::vector<int> tags_;
  std::deque<Message> open_;
  int64_t step_ = 0;
};

/// An exchange with one rank of the world, which is number 0 here, and the memory of its data. Both
/// sides mark the data with `tag`.
struct PairExchange {
  PairExchange(Communicator& communicator, int world_rank, int tag, at::Tensor kept)
      : ranks{world_rank}, memory(std::move(kept)), exchange(communicator, ranks, tag) {
    exchange.set_tag_of(0, tag);
  }
  const std::vector<int> ranks;
  const at::Tensor memory;
  Exchange exchange;
};

}  // namespace tessera::internal::mpi
