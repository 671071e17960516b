#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <type_traits>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/mpi/envelope.h"
#include "tessera/core/comm/mpi/ranks.h"

namespace tessera::internal::mpi {

/// What a rank asks for; the payload of a kRead.
struct ReadRequest {
  int64_t window;  ///< its number in the group
  int64_t begin_bytes;
  int64_t bytes;
  int64_t is_word;  ///< not 0: one int64, with acquire order
};
static_assert(std::is_trivially_copyable_v<ReadRequest>);
static_assert(sizeof(ReadRequest) <= Envelope::kPayloadBytes);

/// The owner's side of the windows of one group: keeps their memory while another rank may read it,
/// and sends what is asked for. Used by the progress thread alone.
///
/// Note [Windows over MPI]
/// ~~~~~~~~~~~~~~~~~~~~~~~
/// A read is a request to the owner, whose progress thread answers while its other threads compute:
/// with the data inside the envelope, or with the tag of a message that it sends out of the
/// window's memory. The reader posts its receive when it has the answer, so one that gives up has
/// nothing that data could come to; what comes later is taken and dropped. MPI's own one-sided
/// operations are not used: an owner makes progress on them only inside other MPI calls, and they
/// cannot be given up.
///
/// A window is numbered by the make_window() that made it, and served from before this rank's call
/// is known to the others. Each rank says when it has destroyed its own (kClosed); until all others
/// have, or have ended, the memory stays and is served, after the group is gone, too: the group's
/// Link stays in its World until then, and the World does not end before. So a rank that has done
/// its work waits at the end of its process for those that may still read. A failure of the group
/// ends all of it.
///
/// A reader has all of its data before it enters a fence, and then MPI has no more to read of the
/// owner's memory, whenever it reports the send's end: the owner may write after the fence.
class WindowServer {
 public:
  explicit WindowServer(const Ranks& ranks) : ranks_(ranks) {}

  void open(int64_t window, at::Tensor memory);
  /// This rank has destroyed its window.
  void close(int64_t window);
  void close_all();

  void answer(int reader, const Envelope& request);
  /// `reader` has destroyed its window.
  void note_closed(int reader, int64_t window);
  /// `reader` has left the world.
  void note_ended(int reader);
  /// Nothing is served any more.
  void end_all() { windows_.clear(); }

  /// Whether there are no windows, here or elsewhere.
  bool is_empty() const { return windows_.empty(); }
  /// Whether anybody may ask.
  bool is_asked() const;

 private:
  struct Served {
    at::Tensor memory;
    std::set<int> readers;  // that have not destroyed theirs
    bool is_open = true;    // this rank has not, either
  };

  void drop_unused();
  void refuse(int reader, const Envelope& request);

  const Ranks& ranks_;
  std::map<int64_t, Served> windows_;  // by number
};

}  // namespace tessera::internal::mpi
