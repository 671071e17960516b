#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/mpi/communicator.h"

namespace tessera::internal::mpi {

/// Messages of data that are under way with the ranks of one group. Used by the progress thread
/// alone.
class Exchange {
 public:
  /// `world_ranks` by rank of the group; `own_tag` marks what this rank sends. References must
  /// outlive it.
  Exchange(Communicator& communicator, const std::vector<int>& world_ranks, int own_tag);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// What rank `rank` marks its data with.
  void set_tag_of(int rank, int tag) { tags_[static_cast<size_t>(rank)] = tag; }

  static constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();
  /// The largest message that MPI sends unasked: Open MPI over TCP asks from 64 KiB on. Note [Steps
  /// under way].
  static constexpr int64_t kUnaskedBytes = int64_t{60} << 10;

  /// In messages of `most` bytes, which both ranks say alike.
  void send(int to, const char* data, int64_t bytes, int64_t most = kWhole);
  void receive(int from, char* data, int64_t bytes, int64_t most = kWhole);

  /// Whether all of them are over. Looks.
  bool is_over() { return is_over_but_for(0); }
  /// Whether all are over that began before the last `steps` steps. Looks.
  bool is_over_but_for(int64_t steps);
  /// What begins from now on belongs to the next step.
  void begin_step() { ++step_; }
  /// Gives up receives that have not begun.
  void cancel();
  /// Ranks whose messages are not over. Looks.
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

/// One with one rank of the world, which is number 0 here, and the memory of its data, which either
/// side marks with `tag`.
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
