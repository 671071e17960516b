#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/mpi/communicator.h"

namespace tessera::internal::mpi {

/// The data messages that are under way between this rank and the ranks of one group. For the
/// progress thread only.
class Exchange {
 public:
  /// `world_ranks[r]` is the world rank of the group's rank r. `own_tag`: the tag with which this
  /// rank sends. `communicator` and `world_ranks` must outlive the exchange.
  Exchange(Communicator& communicator, const std::vector<int>& world_ranks, int own_tag);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Sets the tag with which rank `rank` sends its data.
  void set_tag_of(int rank, int tag) { tags_[static_cast<size_t>(rank)] = tag; }

  static constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();
  /// The largest message that MPI sends eagerly, without asking the receiver first. Open MPI over
  /// TCP asks from 64 KiB on. Note [Steps under way].
  static constexpr int64_t kUnaskedBytes = int64_t{60} << 10;

  /// Starts to send or receive `bytes` bytes, in messages of at most `most` bytes. `most` must be
  /// equal on both ranks.
  void send(int to, const char* data, int64_t bytes, int64_t most = kWhole);
  void receive(int from, char* data, int64_t bytes, int64_t most = kWhole);

  /// Tests the messages. Returns true if all have completed.
  bool is_over() { return is_over_but_for(0); }
  /// Tests the messages. Returns true if all have completed, not counting the messages of the last
  /// `steps` steps.
  bool is_over_but_for(int64_t steps);
  /// Begins the next step. Messages that start from now on belong to it.
  void begin_step() { ++step_; }
  /// Cancels receives whose messages have not begun to arrive.
  void cancel();
  /// Tests the messages. Returns the ranks whose messages have not completed.
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

/// An exchange between this rank and one other rank of the world, and the memory of the data. The
/// other rank has number 0 in the exchange. Both ranks send with `tag`.
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
