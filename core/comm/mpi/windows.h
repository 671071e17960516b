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

/// A request for a part of a window; the payload of a kRead. The part lies inside the window.
struct ReadRequest {
  int64_t window;  ///< its number in the group
  int64_t begin_bytes;
  int64_t bytes;
  int64_t is_word;  ///< if not 0, the read is of one int64, which is loaded with acquire order
};
static_assert(std::is_trivially_copyable_v<ReadRequest>);
static_assert(sizeof(ReadRequest) <= Envelope::kPayloadBytes);

/// The windows of one group: this rank's parts, which it serves, and its reads of other ranks'
/// parts. Only the progress thread may use it.
///
/// Note [Windows over MPI]
/// ~~~~~~~~~~~~~~~~~~~~~~~
/// To read, a rank sends a request to the rank that owns the memory. The owner's progress thread
/// answers while its other threads compute. The answer has small data inside; for larger data it
/// has the tag of a message that the owner sends from the window's memory. The reader posts its
/// receive only when it has the answer. So if a reader gives up before the answer, no data can
/// arrive in its memory; data that still comes is received into other memory and dropped. MPI's
/// one-sided operations are not used, because an owner makes progress on them only inside other MPI
/// calls, and they cannot be cancelled.
///
/// A window has the number of the make_window() call that made it. A rank serves its part before
/// the other ranks know of its call. Each rank tells the others when it has destroyed its window
/// (kClosed). A rank keeps and serves its memory until all other ranks have destroyed the window or
/// have ended, even if the group is destroyed earlier: until then the group's Link stays in its
/// World, and the World does not end. So a rank that has finished its work waits at the end of its
/// process for ranks that may still read. After a failure of the group no rank serves its windows.
/// The ranks report the failure to each other, so a reader gets the failure instead of an answer.
///
/// A reader has received all of its data before it enters a fence. So after the fence the owner may
/// write: MPI does not read the owner's memory any more, even if it reports the send as complete
/// only later.
///
/// Note [Reads in parts]
/// ~~~~~~~~~~~~~~~~~~~~~
/// A large read is requested in parts, and only a few parts from each owner are under way at a
/// time, however much is to be read. Everything that an owner later sends, its own requests
/// included, queues after the data that it is already sending. Where ranks read from each other
/// over a slow link, each would otherwise get the other's requests too late, and the link would be
/// idle half of the time.
class Windows {
 public:
  explicit Windows(std::shared_ptr<const Ranks> ranks) : ranks_(std::move(ranks)) {}

  const Ranks& ranks() const { return *ranks_; }

  // The owner's side.

  /// Serves `own`, this rank's part of window `number`, from now on.
  void open(int64_t number, at::Tensor own);
  /// Notes that this rank has destroyed window `number`, or all its windows, and tells the others.
  void close(int64_t number);
  void close_all();
  void answer(int reader, const Envelope& request);
  /// Notes that `reader` has destroyed its window `number`.
  void note_closed(int reader, int64_t number) { drop_user(reader, number); }
  /// Returns true if another rank may still request data of this rank's parts.
  bool is_asked() const;

  // The reader's side.

  /// Requests data from rank `owner`. The data goes to the output of `call`.
  void read(const std::shared_ptr<Call>& call, int owner, const ReadRequest& request);
  void take(int owner, const Envelope& answer);
  bool has_reads() const { return !parts_.empty(); }

  // Both sides.

  /// Advances the reads and reports those that take long. If the group has failed, fails the reads
  /// and stops serving. `link` is the group's link. Throws Fault if a read waits too long.
  void advance(const internal::Link& link, Call::Clock::time_point now);
  /// Notes that `rank` has left the world and sends no more requests.
  void note_ended(int rank);
  /// Returns true if this rank serves no window and none of its reads is under way.
  bool is_empty() const { return served_.empty() && parts_.empty(); }

 private:
  struct Served {
    at::Tensor memory;
    std::set<int> users;  // ranks that have not destroyed the window
  };
  struct Read {
    std::shared_ptr<Call> call;
    at::Tensor to;  // kept here because the data may still arrive after the call has failed
    int owner;
    ReadRequest request;
    int64_t asked_bytes = 0;
    int64_t come_bytes = 0;
  };
  struct Part {
    std::shared_ptr<Read> read;
    int64_t begin_bytes;  // offset of the part in the data of the read
    int64_t bytes;
    std::shared_ptr<PairExchange> data;  // set once the answer has arrived

    char* target() const;
  };
  /// This rank's reads from one owner.
  struct Owner {
    std::deque<std::shared_ptr<Read>> waiting;  // reads with parts not requested yet
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
  std::map<int64_t, Served> served_;  // by the window's number
  std::map<int, Owner> owners_;
  std::map<int64_t, std::shared_ptr<Part>> parts_;  // by the number of the request
  int64_t last_ = 0;
};

/// Returns the memory of the window that `made_by` makes, through which this rank reads all ranks'
/// parts. The window has the sequence number of that call. Each read is a call of the member that
/// made the window. The destructor closes this rank's window; other ranks may still read this
/// rank's part after that.
std::shared_ptr<RemoteMemory> open_memory(std::shared_ptr<Windows> windows, const Call& made_by);

}  // namespace tessera::internal::mpi
