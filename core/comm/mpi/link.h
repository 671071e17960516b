#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/mpi/envelope.h"
#include "tessera/mpi_calls.h"

namespace tessera::internal::mpi {

using tessera::mpi::Calls;
using tessera::mpi::Handle;

/// One rank's end of a communicator: its numbers, and MPI's errors as exceptions. Used by the
/// progress thread alone.
class Link {
 public:
  /// `comm` belongs to it from now on.
  Link(const Calls& calls, Handle comm);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const Calls& calls() const { return calls_; }
  Handle comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// For the data of a call of this rank; none of the last thousands again.
  int draw_tag();
  void release();

  /// Throws c10::Error "MPI_Isend: <MPI's text>" unless `code` is 0.
  void check(int code, std::string_view function) const;

 private:
  const Calls& calls_;
  Handle comm_;
  int rank_ = 0;
  int size_ = 1;
  int largest_tag_ = 0;
  int last_tag_ = 0;
};

/// Transfers of data that are under way with the ranks of one group.
class Exchange {
 public:
  static constexpr int kNoTag = 0;

  /// `world_ranks` by rank of the group; `own_tag` marks what this rank sends. References must
  /// outlive it.
  Exchange(Link& link, const std::vector<int>& world_ranks, int own_tag);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// What rank `rank` marks its data with.
  void set_tag_of(int rank, int tag) { tags_[static_cast<size_t>(rank)] = tag; }

  void send(int to, const char* data, int64_t bytes);
  void receive(int from, char* data, int64_t bytes);

  /// As above, in several messages that MPI sends unasked; both ranks cut alike. Note [Steps under
  /// way].
  void send_in_pieces(int to, const char* data, int64_t bytes);
  void receive_in_pieces(int from, char* data, int64_t bytes);
  /// The largest such message: Open MPI over TCP asks from 64 KiB on.
  static constexpr int64_t kUnaskedBytes = int64_t{60} << 10;

  /// Whether all of them are over. Looks.
  bool is_over() { return is_over_but_for(0); }
  /// Whether all are over that began before the last `steps` steps. Looks.
  bool is_over_but_for(int64_t steps);
  /// What begins from now on belongs to the next step.
  void begin_step() { ++step_; }
  /// Gives up receives that have not begun.
  void cancel();
  /// Ranks whose transfers are not over. Looks.
  std::vector<int> open_ranks();
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Transfer {
    Handle request;
    int rank;
    bool receives;
    int64_t step;
  };
  bool look(Transfer& transfer);
  void note_send(int to, int64_t bytes, int code, Handle request);

  Link& link_;
  const std::vector<int>& world_ranks_;
  const int own_tag_;
  std::vector<int> tags_;
  std::deque<Transfer> open_;
  int64_t step_ = 0;
  int64_t sent_bytes_ = 0;
};

}  // namespace tessera::internal::mpi
