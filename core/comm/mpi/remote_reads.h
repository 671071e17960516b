#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tessera/core/comm/group/call.h"
#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/mpi/exchange.h"
#include "tessera/core/comm/mpi/ranks.h"
#include "tessera/core/comm/mpi/window_server.h"

namespace tessera::internal::mpi {

/// The reader's side of the windows of one group: what this rank has asked others for. Note
/// [Windows over MPI]. Used by the progress thread alone.
///
/// Note [Reads in parts]
/// ~~~~~~~~~~~~~~~~~~~~~
/// A large read is asked for in parts, of which few are under way from each owner, whatever has
/// been asked of it. For what an owner sends at once stands before all that it wants to say later:
/// before its own requests, too, and where ranks read from each other over a slow link, each would
/// learn only then what the other wants, and the link would be idle half of the time.
class RemoteReads {
 public:
  explicit RemoteReads(std::shared_ptr<const Ranks> ranks) : ranks_(std::move(ranks)) {}

  /// Asks rank `owner`; the data comes to the output of `call`.
  void start(const std::shared_ptr<Call>& call, int owner, const ReadRequest& request);
  /// A kAnswer or kRefused.
  void take(int owner, const Envelope& answer);
  /// Throws Fault if one waits too long; reports long waits. `link` is the group's.
  void advance(const internal::Link& link, Call::Clock::time_point now);
  bool is_busy() const { return !parts_.empty(); }
  /// `owner` has left the world: it answers no more.
  void note_ended(int owner);
  void end_all(const std::string& cause);

 private:
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
    std::shared_ptr<const Ranks> ranks;  // which the exchange uses
    std::unique_ptr<Exchange> exchange;  // once the answer is there

    char* target() const;
  };
  /// What is wanted of one owner.
  struct Owner {
    std::deque<std::shared_ptr<Read>> waiting;  // for parts that have not been asked for
    int open = 0;                               // parts under way
  };

  void ask(int owner);
  void ask_for_part(std::shared_ptr<Read> read);
  void finish(const Part& part);
  void fail(const std::shared_ptr<Read>& read, const std::string& cause);
  std::string left(int owner) const;
  void look_for_late(const Read& read, bool is_answered, const internal::Link& link,
                     Call::Clock::time_point now) const;
  [[noreturn]] void time_out(const Read& read, bool is_answered) const;

  const std::shared_ptr<const Ranks> ranks_;
  std::map<int, Owner> owners_;
  std::map<int64_t, std::shared_ptr<Part>> parts_;  // by the number of the request
  int64_t last_ = 0;
  std::optional<Fault> fault_;  // of an answer
};

}  // namespace tessera::internal::mpi
