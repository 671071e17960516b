#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/group/call.h"
#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/mpi/envelope.h"
#include "tessera/core/comm/mpi/exchange.h"
#include "tessera/core/comm/mpi/ranks.h"

namespace tessera::internal::mpi {

/// A request for a part of a window, which lies inside it; the payload of a kRead.
struct ReadRequest {
  int64_t window;  ///< its number in the group
  int64_t begin_bytes;
  int64_t bytes;
  int64_t is_word;  ///< not 0: one int64, with acquire order
};
static_assert(std::is_trivially_copyable_v<ReadRequest>);
static_assert(sizeof(ReadRequest) <= Envelope::kPayloadBytes);

/// The windows of one group: this rank's parts, and its reads of others'. Progress thread only.
///
/// Note [Windows over MPI]
/// ~~~~~~~~~~~~~~~~~~~~~~~
/// A read is a request to the owner. The owner's progress thread answers while its other threads
/// compute: with the data inside the envelope, or with the tag of a message that it sends from the
/// window's memory. The reader posts its receive when it has the answer. So a reader that gives up
/// has no memory that data could come to; what comes later is received and dropped. MPI's own
/// one-sided operations are not used: an owner makes progress on them only inside other MPI calls,
/// and they cannot be given up.
///
/// A window has the number of the make_window() that made it, and is served before the others know
/// of this rank's call. Each rank says when it has destroyed its own (kClosed). Until all others
/// have, or have ended, the memory stays and is served, even after the group is gone: the group's
/// Link stays in its World until then, and the World does not end before. So a rank that has done
/// its work waits at the end of its process for ranks that may still read. A failure of the group
/// ends all this. Its ranks tell each other, so a rank that asks hears of the failure instead.
///
/// A reader has all of its data before it enters a fence. MPI then has no more to read in the
/// owner's memory, even if it reports the end of the send later. The owner may write then.
///
/// Note [Reads in parts]
/// ~~~~~~~~~~~~~~~~~~~~~
/// A large read is asked for in parts, and few parts are under way from each owner, whatever has
/// been asked of it. What an owner sends at once goes before all that it wants to say later, its
/// own requests included. Where ranks read from each other over a slow link, each would learn too
/// late what the other wants, and the link would be idle half of the time.
class Windows {
 public:
  explicit Windows(std::shared_ptr<const Ranks> ranks) : ranks_(std::move(ranks)) {}

  const Ranks& ranks() const { return *ranks_; }

  // The owner's side.

  /// This rank's part of window `number` is served from now on.
  void open(int64_t number, at::Tensor own);
  /// This rank has destroyed this window, or all of its windows.
  void close(int64_t number);
  void close_all();
  void answer(int reader, const Envelope& request);
  /// `reader` has destroyed its window.
  void note_closed(int reader, int64_t number) { drop_user(reader, number); }
  /// Returns true if others may ask at any time.
  bool is_asked() const;

  // The reader's side.

  /// Asks rank `owner` for data, which goes to the output of `call`.
  void read(const std::shared_ptr<Call>& call, int owner, const ReadRequest& request);
  void take(int owner, const Envelope& answer);
  bool has_reads() const { return !parts_.empty(); }

  // Both.

  /// Goes on with reads, reports long ones, and ends all of it if the group has failed. `link` is
  /// the group's. Throws Fault if a read waits too long.
  void advance(const internal::Link& link, Call::Clock::time_point now);
  /// A rank has left the world, and asks no more.
  void note_ended(int rank);
  /// Returns true if no other rank may read from this one, and this one reads from none.
  bool is_empty() const { return served_.empty() && parts_.empty(); }

 private:
  struct Served {
    at::Tensor memory;
    std::set<int> users;  // ranks that have not destroyed their part
  };
  struct Read {
    std::shared_ptr<Call> call;
    at::Tensor to;  // kept after the call has failed
    int owner;
    ReadRequest request;
    int64_t asked_bytes = 0;
    int64_t come_bytes = 0;
  };
  struct Part {
    std::shared_ptr<Read> read;
    int64_t begin_bytes;  // in the read
    int64_t bytes;
    std::shared_ptr<PairExchange> data;  // once the answer is there

    char* target() const;
  };
  /// The reads that wait for one owner.
  struct Owner {
    std::deque<std::shared_ptr<Read>> waiting;  // reads with parts that were not asked for yet
    int open = 0;                               // parts under way
  };

  bool drop_user(int rank, int64_t number);
  std::vector<int64_t> numbers() const;
  void ask(int owner);
  void ask_for_part(std::shared_ptr<Read> read);
  void finish(const Part& part);
  void look_for_late(const Read& read, bool is_answered, const internal::Link& link,
                     Call::Clock::time_point now) const;
  void end_reads(const std::string& cause);

  const std::shared_ptr<const Ranks> ranks_;
  std::map<int64_t, Served> served_;  // by number
  std::map<int, Owner> owners_;
  std::map<int64_t, std::shared_ptr<Part>> parts_;  // by the number of the request
  int64_t last_ = 0;
};

/// Returns the ranks' parts of the window that the call makes, which has the call's number. Reads
/// are calls of the same member. Its destructor gives up this rank's part, which others may still
/// read.
std::shared_ptr<RemoteMemory> open_memory(std::shared_ptr<Windows> windows, const Call& made_by);

}  // namespace tessera::internal::mpi
